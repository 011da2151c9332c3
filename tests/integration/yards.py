# SPDX-License-Identifier: Apache-2.0
"""A yard as the tests see it: raised by ./run up, killed part by part, asked over HTTP and SQL.

Nothing here waits a fixed time: wait_for polls a condition up to a deadline."""
import contextlib
import os
import pathlib
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "demo"))
from client import TERMINAL, ApiError, Client, follow  # pylint: disable=wrong-import-position

BUILD = pathlib.Path(os.environ.get("TRAINYARD_BUILD") or ROOT / "build")
SANITIZED = bool(os.environ.get("TRAINYARD_SANITIZED"))
SLOWER = 4 if SANITIZED else 1  # sanitized programs get longer deadlines
PG_BIN = "/usr/lib/postgresql/15/bin"
POLL_S = 0.05



def wait_for(condition, what, deadline_s=30):
    """The condition's first true value."""
    end = time.monotonic() + deadline_s * SLOWER
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"not so after {deadline_s * SLOWER} s: {what}"
        time.sleep(POLL_S)


def process_start(pid):
    """Clock ticks since boot; None when there is no such process or it is a zombie."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])


class Yard:
    def __init__(self, agents=1, devices=2, region="us-east", environment=None):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="trainyard-test-", dir="/tmp"))
        self.dir.chmod(0o755)  # the postgres user reaches its cluster inside
        self.environment = environment or {}
        self.agents = agents
        self.up("--agents", str(agents), "--devices", str(devices), "--region", region)

    def up(self, *arguments):
        """Raises the yard, or what is not running of it."""
        done = subprocess.run(
            [ROOT / "run", "up", "--dir", self.dir, "--port", "0", *arguments], text=True,
            stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=120 * SLOWER,
            env={**os.environ, **self.environment, "TRAINYARD_BUILT": "1",
                 "TRAINYARD_BUILD": str(BUILD)})
        assert done.returncode == 0, done.stdout + done.stderr
        lines = (self.dir / "env").read_text(encoding="utf-8").splitlines()
        pairs = (line.removeprefix("export ").partition("=") for line in lines)
        self.env = {name: value.strip("'") for name, _, value in pairs}
        self.url = self.env["TRAINYARD_URL"]
        self.operator = Client(self.url, self.env["TRAINYARD_OPERATOR_KEY"])

    def down(self):
        done = subprocess.run([ROOT / "run", "down", "--dir", self.dir], text=True, check=False,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr

    def remove(self, keep=False):
        self.down()
        self.assert_no_complaints()
        if not keep:
            shutil.rmtree(self.dir, ignore_errors=True)

    # -------------------------------------------------------------- processes

    def pid(self, part):
        """The pid of a part ("server", "agent-1") that is alive, or None."""
        try:
            pid, start = map(int, (self.dir / "pid" / part).read_text().split())
        except FileNotFoundError:
            return None
        return pid if process_start(pid) == start else None

    def trainers(self, attempt_dir=None):
        """Pids of this yard's trainers."""
        wanted = f"--dir={attempt_dir or self.dir / 'agent-'}".encode()
        found = []
        for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = entry.read_bytes().split(b"\0")
                if any(word.startswith(wanted) for word in words) and process_start(
                        entry.parent.name) is not None:
                    found.append(int(entry.parent.name))
        return sorted(found)

    def trainer_of(self, rank):
        """The trainer of that rank of the one job that runs, or None."""
        for pid in self.trainers():
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if f"--rank={rank}".encode() in words:
                return pid
        return None

    def kill(self, part):
        """kill -9 of a part; it is gone when this returns."""
        pids = self.trainers() if part == "trainer" else [self.pid(part)]
        assert pids and all(pids), f"{part} does not run"
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            wait_for(lambda p=pid: process_start(p) is None, f"{part} ends", 10)
        return pids

    def _postgres(self, *command):
        prefix = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []
        return subprocess.run([*prefix, *command], text=True, capture_output=True, check=True,
                              stdin=subprocess.DEVNULL, cwd="/", timeout=60)

    def stop_postgres_immediately(self):
        data = (self.dir / "pg").resolve() / "data"
        self._postgres(f"{PG_BIN}/pg_ctl", "-D", str(data), "-s", "-w", "-m", "immediate", "stop")

    def sql(self, statement):
        """Rows of a query, as lists of text."""
        sockets = (self.dir / "sockets").read_text().strip()
        done = self._postgres(f"{PG_BIN}/psql", "-X", "-At", "-F", "\t", "-h", sockets, "-U",
                              "trainyard", "-d", "trainyard", "-v", "ON_ERROR_STOP=1", "-c",
                              statement)
        return [line.split("\t") for line in done.stdout.splitlines()]

    def billing(self, *arguments):
        return subprocess.run([BUILD / "billing/trainyard-billing", *arguments], text=True,
                              capture_output=True, check=False, stdin=subprocess.DEVNULL,
                              timeout=60 * SLOWER, env={**os.environ, **self.env})

    def assert_no_complaints(self):
        """No program's log has a sanitizer's report or a failed assertion (leaks are told at the
        end, so this is asked of a yard that is down)."""
        logs = [*self.dir.glob("log/*.log"), *self.dir.glob("agent-*/**/log.txt")]
        bad = [f"{path}: {line}" for path in logs
               for line in path.read_text(encoding="utf-8", errors="replace").splitlines()
               if re.search(r"Sanitizer|runtime error:|Assertion .* failed", line)]
        assert not bad, "\n".join(bad[:20])

    # -------------------------------------------------------------- tenants and jobs

    def tenant(self, residency=("any",)):
        """(client of a new tenant's owner, tenant id)"""
        made = self.operator.post("/v1/tenants", {"name": "test", "residency": list(residency)})
        key = self.operator.post(f"/v1/tenants/{made['id']}/api-keys",
                                 {"name": "test", "role": "owner"})
        return Client(self.url, key["key"]), made["id"]

    def assert_tiled(self):
        """No device's segments overlap or leave a gap, in our own arithmetic and billing's."""
        gaps = self.sql(
            "with s as (select device_id, lower(period) a, upper(period) b,"
            " lag(upper(period)) over (partition by device_id order by period) before"
            " from segments) select s.device_id, a, before from s join devices d"
            " on d.id = s.device_id where a <> coalesce(before, d.registered_at)")
        assert not gaps, gaps
        open_ends = self.sql(
            "select d.id, d.open_since, max(upper(s.period)) from devices d join segments s"
            " on s.device_id = d.id where d.deregistered_at is null group by d.id, d.open_since"
            " having max(upper(s.period)) <> d.open_since")
        assert not open_ends, open_ends
        done = self.billing("reconcile")
        assert done.returncode == 0, done.stdout + done.stderr


# ------------------------------------------------------------------ small data and jobs

def idx_images(count, side=8, classes=4, seed=7, magic=0x00000803, declared=None):
    """IDX images whose class shows: a bright band at the class's height, on noise."""
    noise = random.Random(seed)
    body = bytearray()
    for index in range(count):
        label = index % classes
        for row in range(side):
            base = 180 if row * classes // side == label else 20
            body += bytes(base + noise.randrange(60) for _ in range(side))
    return struct.pack(">IIII", magic, declared or count, side, side) + bytes(body)


def idx_labels(count, classes=4, magic=0x00000801, declared=None, wrong_at=None):
    labels = bytearray(index % classes for index in range(count))
    if wrong_at is not None:
        labels[wrong_at] = 200
    return struct.pack(">II", magic, declared or count) + bytes(labels)


def words(size, seed=7):
    """Text of about so many bytes, from a few words, so that there is something to learn."""
    source = random.Random(seed)
    some = ["train", "yard", "rail", "switch", "engine", "load", "north", "and", "the", "of"]
    out, length = [], 0
    while length < size:
        out.append(source.choice(some))
        length += len(out[-1]) + 1
    return (" ".join(out) + "\n").encode()


def mlp_job(images, labels, **more):
    return merged({
        "name": "bands", "task": "image_classification",
        "model": {"config": {
            "family": "mlp", "hidden": [16], "in_channels": 1, "in_height": 8, "in_width": 8,
            "n_classes": 4}},
        "training_file": [images, labels], "validation_file": [images, labels],
        "hyperparameters": {"epochs": 4, "batch_size": 16, "learning_rate": 0.01,
                            "schedule": "constant", "warmup_steps": 0},
        "precision": "fp32", "resources": {"instance_type": "cpu-dev", "count": 1}, "seed": 3,
    }, more)


def gpt2_job(text, steps, every=0, **more):
    return merged({
        "name": "words", "task": "language_model",
        "model": {"config": {"family": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 32,
                             "n_positions": 32, "vocab_size": 256}},
        "training_file": text, "validation_file": text,
        "data": {"format": "text", "tokenizer": "bytes", "sequence_length": 32},
        "hyperparameters": {"max_steps": steps, "batch_size": 8, "learning_rate": 0.003,
                            "warmup_steps": 5},
        "checkpoint": {"every_steps": every, "keep": 3},
        "precision": "fp32", "resources": {"instance_type": "cpu-dev", "count": 1}, "seed": 5,
    }, more)


def merged(job, more):
    for key, value in more.items():
        both = isinstance(value, dict) and isinstance(job.get(key), dict)
        job[key] = {**job[key], **value} if both else value
    return job


def done(client, job, deadline_s=60):
    """The job once it has ended, however."""
    path = f"/v1/jobs/{job['id']}"
    return wait_for(lambda: ended(get_patiently(client, path)), f"{job['id']} ends", deadline_s)


def get_patiently(client, path):
    """A GET while parts of the yard are down: None instead of a failure."""
    try:
        return client.get(path)
    except (OSError, ApiError) as error:
        if isinstance(error, ApiError) and error.status < 500 and error.status != 429:
            raise
        return None


def ended(job):
    return job if job and job["status"] in ("succeeded", "failed", "cancelled") else None


def succeeded(client, job, deadline_s=60):
    job = done(client, job, deadline_s)
    assert job["status"] == "succeeded", job["error"]
    return job
