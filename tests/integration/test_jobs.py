# SPDX-License-Identifier: Apache-2.0
"""Small jobs end to end: trained, followed, downloaded, metered, cancelled; tenants apart."""
import hashlib
import threading

import pytest

from yards import (ApiError, done, follow, gpt2_job, idx_images, idx_labels, mlp_job, succeeded,
                   wait_for, words, SLOWER)

import time


def upload_bands(client, count=256):
    images = client.upload(idx_images(count), "images")
    labels = client.upload(idx_labels(count), "labels")
    return images["id"], labels["id"]


def test_mlp_learns_and_its_model_is_what_the_yard_says(client, tmp_path):
    job = succeeded(client, client.post("/v1/jobs", mlp_job(*upload_bands(client))))
    assert job["progress"]["accuracy"] >= 0.95
    assert job["progress"]["step"] == job["progress"]["steps"] == 64
    assert job["progress"]["memory_bytes"] == job["plan"]["total_bytes"]
    assert [a["outcome"] for a in job["attempts"]] == ["succeeded"]
    assert "model.safetensors" in [file["name"] for file in job["result"]["files"]]
    for file in job["result"]["files"]:
        path = f"/v1/models/{job['result']['model']}/files/{file['name']}"
        assert client.download(path, tmp_path / "file") == (file["bytes"], file["sha256"])


def test_range_of_a_model_file(client):
    job = succeeded(client, client.post("/v1/jobs", mlp_job(*upload_bands(client))))
    file = next(f for f in job["result"]["files"] if f["name"] == "model.safetensors")
    path = f"/v1/models/{job['result']['model']}/files/{file['name']}"
    whole = client.raw("GET", path)[2]
    status, headers, part = client.raw("GET", path, headers={"Range": "bytes=10-29"})
    assert (status, part) == (206, whole[10:30])
    assert headers["Content-Range"] == f"bytes 10-29/{file['bytes']}"
    assert client.raw("GET", path, headers={"Range": "bytes=-5"})[2] == whole[-5:]
    assert client.raw("GET", path, headers={"Range": f"bytes={file['bytes']}-"})[0] == 416


def test_language_model_beats_order_0_and_repeats_bit_for_bit(client):
    text = client.upload(words(20000), "words.txt")["id"]
    first, second = (client.post("/v1/jobs", gpt2_job(text, 120)) for _ in range(2))
    first, second = succeeded(client, first), succeeded(client, second)
    progress = first["progress"]
    assert progress["bits_per_byte"] < progress["order0_bits_per_byte"]
    assert first["result"]["files"] == second["result"]["files"]


def test_events_tell_the_story_in_order_and_resume(client):
    text = client.upload(words(20000), "words.txt")["id"]
    job = client.post("/v1/jobs", gpt2_job(text, 120, every=40))
    seen, stream = [], client.events(job["id"])
    for event in stream:  # leave in the middle of the story
        seen.append(event)
        if event["event"] == "checkpoint":
            stream.close()
            break
    resumed = list(client.events(job["id"], last_event_id=seen[-1]["id"]))
    ids = [int(event["id"]) for event in seen + resumed]
    assert ids == list(range(1, len(ids) + 1))
    kinds = [event["event"] for event in seen + resumed]
    assert kinds[-1] == "job.succeeded"
    order = [kinds.index(kind) for kind in ("job.queued", "job.assigned", "job.starting",
                                            "job.training", "step", "checkpoint", "evaluation")]
    assert order[:6] == sorted(order[:6])
    assert kinds.count("checkpoint") >= 3
    # The list says the same, whole, and a finished job's stream ends at once.
    listed = [int(event["seq"] if "seq" in event else event["id"])
              for event in client.get(f"/v1/jobs/{job['id']}/events?limit=100")["data"]]
    assert sorted(listed)[:len(ids)] == ids[:len(listed)]
    assert [event["event"] for event in follow(client, job["id"], 10, time.monotonic)] == kinds


def test_checkpoints_are_listed(client):
    text = client.upload(words(20000), "words.txt")["id"]
    job = succeeded(client, client.post("/v1/jobs", gpt2_job(text, 100, every=40)))
    steps = [row["step"] for row in client.pages(f"/v1/jobs/{job['id']}/checkpoints")]
    assert {40, 80} <= set(steps)


def test_cancel_leaves_a_checkpoint_and_a_bill(client):
    text = client.upload(words(20000), "words.txt")["id"]
    job = client.post("/v1/jobs", gpt2_job(text, 1000000, every=50))
    path = f"/v1/jobs/{job['id']}"
    wait_for(lambda: (client.get(path)["progress"]["step"] or 0) > 60, "it trains")
    client.post(path + "/cancel", {})
    job = done(client, job)
    assert job["status"] == "cancelled"
    last = max(row["step"] for row in client.pages(path + "/checkpoints"))
    assert last >= job["attempts"][0]["last_step"] > 60
    assert job["usage"]["billed_seconds"] > 0
    assert client.post(path + "/cancel", {})["status"] == "cancelled"  # asking again


def test_idempotency_key(client):
    text = client.upload(words(2000), "words.txt")["id"]
    body, key = gpt2_job(text, 5), {"Idempotency-Key": "once"}
    first = client.post("/v1/jobs", body, key)
    assert client.post("/v1/jobs", body, key)["id"] == first["id"]
    with pytest.raises(ApiError) as refused:
        client.post("/v1/jobs", {**body, "seed": 6}, key)
    assert refused.value.status == 422
    assert refused.value.error["code"] == "idempotency_key_reuse"
    assert len(list(client.pages("/v1/jobs"))) == 1
    done(client, first)


def test_idempotency_key_under_a_crowd(client):
    text = client.upload(words(2000), "words.txt")["id"]
    answers, lock = [], threading.Lock()

    def post():
        try:
            answer = client.post("/v1/jobs", gpt2_job(text, 5), {"Idempotency-Key": "crowd"})["id"]
        except ApiError as error:
            answer = error.error["code"]
        with lock:
            answers.append(answer)

    crowd = [threading.Thread(target=post) for _ in range(12)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join(60)
    jobs = list(client.pages("/v1/jobs"))
    assert len(jobs) == 1
    assert set(answers) <= {jobs[0]["id"], "idempotency_in_flight"} and jobs[0]["id"] in answers
    done(client, jobs[0])


def test_two_devices_train_at_once(yard, client):
    text = client.upload(words(20000), "words.txt")["id"]
    jobs = [client.post("/v1/jobs", gpt2_job(text, 1000000)) for _ in range(2)]
    wait_for(lambda: all((client.get(f"/v1/jobs/{job['id']}")["progress"]["step"] or 0) > 3
                         for job in jobs), "both train")
    assert len(yard.trainers()) == 2
    for job in jobs:
        client.post(f"/v1/jobs/{job['id']}/cancel", {})
    for job in jobs:
        assert done(client, job)["status"] == "cancelled"
    wait_for(lambda: not yard.trainers(), "their trainers leave")


def test_tenants_do_not_see_each_other(yard, client):
    other = yard.tenant()[0]
    images, labels = upload_bands(client)
    job = succeeded(client, client.post("/v1/jobs", mlp_job(images, labels)))
    model = job["result"]["model"]
    for path in (f"/v1/files/{images}", f"/v1/files/{images}/content", f"/v1/jobs/{job['id']}",
                 f"/v1/jobs/{job['id']}/events", f"/v1/jobs/{job['id']}/usage",
                 f"/v1/jobs/{job['id']}/checkpoints", f"/v1/models/{model}",
                 f"/v1/models/{model}/files/model.safetensors"):
        assert client.raw("GET", path)[0] == 200, path
        assert other.raw("GET", path)[0] == 404, path
    with pytest.raises(ApiError) as refused:
        other.post("/v1/jobs", mlp_job(images, labels))
    assert refused.value.status in (400, 404)
    assert other.raw("POST", f"/v1/jobs/{job['id']}/cancel")[0] == 404
    assert not list(other.pages("/v1/jobs")) and not list(other.pages("/v1/files"))


def test_upload_is_whole_whatever_its_size(client):
    content = words(3 << 20)
    file = client.upload(content, "large.txt")
    assert (file["bytes"], file["filename"]) == (len(content), "large.txt")
    assert client.download(f"/v1/files/{file['id']}/content") == (
        len(content), hashlib.sha256(content).hexdigest())


def test_usage_and_invoice_agree_with_the_segments(yard):
    client, tenant = yard.tenant()
    job = succeeded(client, client.post("/v1/jobs", mlp_job(*upload_bands(client))), 60 * SLOWER)
    usage = client.get(f"/v1/jobs/{job['id']}/usage")
    billed = sum(s["duration_ms"] for s in usage["segments"] if s["state"] == "billed")
    assert billed > 0
    assert abs(job["usage"]["billed_seconds"] * 1000 - billed) < 0.5
    closed = yard.billing("close", f"--tenant={tenant}")
    assert closed.returncode == 0, closed.stdout + closed.stderr
    rows = list(client.pages("/v1/invoices"))
    assert [row["status"] for row in rows] == ["finalized"]
    invoice = client.get(f"/v1/invoices/{rows[0]['id']}")
    assert [line["quantity_ms"] for line in invoice["lines"]] == [billed]
    again = yard.billing("close", f"--tenant={tenant}")
    assert again.returncode == 0, again.stdout + again.stderr
    assert [row["id"] for row in client.pages("/v1/invoices")
            if client.get(f"/v1/invoices/{row['id']}")["lines"]] == [invoice["id"]]
