# SPDX-License-Identifier: Apache-2.0
"""What nobody should send, and what should not happen: none of it may wedge a job or a device."""
import concurrent.futures
import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import socket
import subprocess
import time

import pytest

from yards import (BUILD, TERMINAL, ApiError, Client, done, gpt2_job, idx_images, idx_labels,
                   mlp_job, succeeded, wait_for, words)

FORGED_TYPE, FORGED_REGION = "rtx-3090", "us-east-2"  # a kind of device that only we offer
CONTENT = b"model"
CONTENT_SHA = hashlib.sha256(CONTENT).hexdigest()


class ForgedAgent:
    """A machine that says what we want it to."""

    def __init__(self, yard, name):
        made = subprocess.run(
            [BUILD / "server/trainyard-server", "create-key", f"--name={name}", "--role=agent",
             f"--region={FORGED_REGION}"], text=True, capture_output=True, check=True,
            stdin=subprocess.DEVNULL, timeout=60, env={**os.environ, **yard.env})
        self.client = Client(yard.env["TRAINYARD_AGENT_URL"], made.stdout.strip())
        self.name = name

    def register(self, devices=1):
        listed = [{"index": i, "name": f"d{i}", "memory_bytes": 1 << 34} for i in range(devices)]
        self.id = self.client.post("/agent/v1/register", {
            "name": self.name, "boot_id": "b", "engine_build": "x", "region": FORGED_REGION,
            "instance_type": FORGED_TYPE, "devices": listed, "rates": {}})["agent_id"]

    def attempts(self):
        return self.client.post("/agent/v1/poll", {
            "agent_id": self.id, "version": -1, "wait_ms": 0})["attempts"]

    def attempt(self):
        return wait_for(lambda: (self.attempts() or [None])[0], "an attempt is placed")

    def report(self, attempt, messages, first=1, epoch=None):
        """The result of the attempt after these messages."""
        fence = {"attempt_id": attempt["attempt_id"], "epoch": epoch or attempt["epoch"]}
        return self.client.post("/agent/v1/report", {
            "agent_id": self.id, "beats": [fence],
            "messages": [{**fence, "seq": first + i, **m} for i, m in enumerate(messages)],
        })["results"][0]

    def blob(self, method, attempt, sha256, body=None):
        return self.client.raw(method, f"/agent/v1/blobs/{sha256}", body, {
            "X-Attempt-Id": attempt["attempt_id"], "X-Attempt-Epoch": str(attempt["epoch"]),
            "X-Attempt-Token": attempt["token"]})[0]

    def end_all(self):
        for attempt in self.attempts():
            known = self.report(attempt, [])
            self.report(attempt, [{"t": "end", "outcome": "cancelled"}], known["acked_seq"] + 1)


@pytest.fixture(scope="module")
def machines(yard):
    """Two forged agents; only the first one has a device."""
    made = [ForgedAgent(yard, "forged-1"), ForgedAgent(yard, "forged-2")]
    made[0].register()
    made[1].register(devices=0)
    yield made
    made[0].end_all()
    made[0].register(devices=0)


@pytest.fixture
def forged_job(client, machines):
    """(client, agent, job, its first attempt)"""
    text = client.upload(words(3000), "words.txt")["id"]
    job = client.post("/v1/jobs", gpt2_job(text, 100, resources={"instance_type": FORGED_TYPE}))
    yield client, machines[0], job, machines[0].attempt()
    with contextlib.suppress(ApiError):
        client.post(f"/v1/jobs/{job['id']}/cancel", {})
    machines[0].end_all()
    assert done(client, job)["status"] in ("succeeded", "failed", "cancelled")


START = [{"t": "starting"}, {"t": "training", "steps": 100}]


def file_of(name="model.safetensors", sha256=CONTENT_SHA, size=len(CONTENT)):
    return {"name": name, "sha256": sha256, "bytes": size}


def checkpoint_of(*files):
    return {"t": "checkpoint", "step": 1, "files": list(files)}


def model_of(*files):
    return {"t": "end", "outcome": "succeeded", "files": list(files)}


POISON = {
    "fractional steps": {"t": "step", "step": 1, "steps": 1.5},
    "more steps than count": {"t": "step", "step": 1, "steps": 1 << 62},
    "negative step": {"t": "step", "step": -1},
    "kind that is not there": {"t": "dance"},
    "reason that is not there": {"t": "end", "outcome": "failed", "reason": "'; --"},
    "rank beyond its column": {"t": "end", "outcome": "failed", "reason": "user_error",
                               "rank": 1 << 40},
    "content that is not stored": checkpoint_of(file_of(sha256="9" * 64)),
    "content of another length": checkpoint_of(file_of(size=6)),
    "more bytes than count": checkpoint_of(*[file_of(f"part{i}", size=1 << 62) for i in range(3)]),
    "a name twice": checkpoint_of(file_of(), file_of()),
    "a name that leads away": model_of(file_of("../model.safetensors")),
    "a name from the root": model_of(file_of("/etc/passwd")),
    "a name that no path can say": model_of(file_of("model\n.safetensors")),
    "a model without files": model_of(),
}


@pytest.mark.parametrize("name", POISON)
def test_poisoned_message_ends_its_attempt_and_in_the_end_its_job(forged_job, name):
    client, agent, job, attempt = forged_job
    for number in (1, 2, 3):
        assert attempt["number"] == number
        assert agent.blob("PUT", attempt, CONTENT_SHA, CONTENT) in (200, 201)
        assert agent.report(attempt, START)["status"] == "ok"
        assert agent.report(attempt, [POISON[name]], 3)["status"] == "lost"
        if number < 3:
            attempt = agent.attempt()
    job = client.get(f"/v1/jobs/{job['id']}")
    assert (job["status"], job["error"]["code"]) == ("failed", "platform_error"), job
    assert {a["reason"] for a in job["attempts"]} == {"platform_error"}
    assert "SQLSTATE" not in json.dumps(job)
    assert not agent.attempts()


def test_machine_that_never_starts_is_not_asked_for_ever(forged_job):
    client, agent, job, attempt = forged_job
    refusal = {"t": "end", "outcome": "failed", "reason": "platform_error", "message": "no disk"}
    for number in (1, 2, 3):
        assert attempt["number"] == number
        agent.report(attempt, [refusal])
        if number < 3:
            attempt = agent.attempt()
    job = client.get(f"/v1/jobs/{job['id']}")
    assert (job["status"], job["error"]["message"]) == ("failed", "no disk")


def test_fences_hold(forged_job, machines):
    client, agent, job, attempt = forged_job
    thief = machines[1]
    assert agent.report(attempt, START, epoch=attempt["epoch"] + 1)["status"] == "lost"
    assert thief.report(attempt, START)["status"] == "lost"
    for first in (2, 1 << 62, -5):  # a gap, and what is no next number either
        assert agent.report(attempt, START, first)["acked_seq"] == 0
    assert thief.blob("PUT", attempt, CONTENT_SHA, CONTENT) == 409
    assert agent.blob("PUT", {**attempt, "token": "x"}, CONTENT_SHA, CONTENT) == 409
    assert agent.blob("PUT", attempt, "0" * 64, CONTENT) == 400  # not that content's hash
    assert agent.blob("PUT", attempt, CONTENT_SHA, CONTENT) == 201
    assert agent.blob("GET", attempt, CONTENT_SHA) == 404  # stored, but not the job's
    assert thief.blob("GET", attempt, attempt["files"][0]["sha256"]) == 409
    assert agent.blob("GET", attempt, attempt["files"][0]["sha256"]) == 200
    assert agent.report(attempt, START + [model_of(file_of())])["status"] == "ok"
    assert succeeded(client, job)["result"]["files"][0]["sha256"] == CONTENT_SHA
    assert agent.blob("PUT", attempt, CONTENT_SHA, CONTENT) == 409
    assert agent.blob("GET", attempt, attempt["files"][0]["sha256"]) == 409
    assert agent.report(attempt, START)["status"] == "lost"


def test_keys_open_only_their_own_port(yard, client, machines):
    assert Client(yard.url, machines[0].client.key).raw("GET", "/v1/jobs")[0] == 403
    for key in (client.key, yard.operator.key):
        body = b'{"agent_id": "agent_01ARZ3NDEKTSV4RRFFQ69G5FAV"}'
        assert Client(yard.env["TRAINYARD_AGENT_URL"], key).raw(
            "POST", "/agent/v1/poll", body, {"Content-Type": "application/json"})[0] == 403


# ------------------------------------------------------------------ jobs

def test_plan_known_only_from_the_data_is_refused_with_both_figures(client):
    images, labels = idx_images(16, side=160), idx_labels(16)
    ids = [client.upload(content, "x.idx")["id"] for content in (images, labels)]
    job = mlp_job(*ids, hyperparameters={"max_steps": 5, "batch_size": 4})
    job["model"] = {"config": {"family": "mlp", "hidden": [16384]}}
    job = done(client, client.post("/v1/jobs", job))
    assert (job["status"], job["error"]["code"]) == ("failed", "out_of_memory"), job["error"]
    figures = [int(text) for text in re.findall(r"(\d+) bytes", job["error"]["message"])]
    assert len(figures) == 2 and figures[0] > figures[1] == 2 << 30, job["error"]


def test_diverging_loss_and_the_time_limit_end_with_their_reasons(client):
    text = client.upload(words(20000), "words.txt")["id"]
    wild = {"learning_rate": 100, "warmup_steps": 0, "optimizer": "sgd", "grad_clip": 0}
    wild = gpt2_job(text, 100, hyperparameters={"max_steps": 100, **wild})
    jobs = [client.post("/v1/jobs", wild),
            client.post("/v1/jobs", gpt2_job(text, 1000000, limits={"max_runtime_s": 1}))]
    ended = [done(client, job) for job in jobs]
    assert [job["error"]["code"] for job in ended] == ["nan_loss", "max_runtime"]
    assert [len(job["attempts"]) for job in ended] == [1, 1]
    assert list(client.pages(f"/v1/jobs/{ended[1]['id']}/checkpoints"))


def test_file_in_use_stays_and_many_cancels_are_one(client):
    text = client.upload(words(20000), "words.txt")["id"]
    job = client.post("/v1/jobs", gpt2_job(text, 1000000))
    path = f"/v1/jobs/{job['id']}"
    assert client.raw("DELETE", f"/v1/files/{text}")[0] == 409
    wait_for(lambda: client.get(path)["attempts"], "it is placed")
    with concurrent.futures.ThreadPoolExecutor(12) as crowd:
        list(crowd.map(lambda _: client.post(path + "/cancel", {}), range(12)))
    assert done(client, job)["status"] == "cancelled"
    kinds = [e["type"] for e in client.get(f"{path}/events?limit=100")["data"]]
    assert [kind for kind in kinds if kind in TERMINAL] == ["job.cancelled"]
    assert kinds[-1] == "job.cancelled"
    assert client.raw("DELETE", f"/v1/files/{text}")[0] == 200


def test_deleting_a_file_and_using_it_exclude_each_other(client):
    def use(file):
        try:
            return client.post("/v1/jobs", gpt2_job(file, 5, hyperparameters={
                "max_steps": 5, "batch_size": 4, "warmup_steps": 0}))
        except ApiError as error:
            assert error.status == 400, error
            return None

    jobs = []
    with concurrent.futures.ThreadPoolExecutor(2) as both:
        for seed in range(6):
            file = client.upload(words(2000, seed=seed), "words.txt")["id"]
            posted = both.submit(use, file)
            deleted = both.submit(client.raw, "DELETE", f"/v1/files/{file}")
            assert (deleted.result()[0] == 200) == (posted.result() is None)
            jobs += [posted.result()] if posted.result() else []
    for job in jobs:
        succeeded(client, job)


def test_deleted_cache_is_made_again(yard, client):
    text = client.upload(words(20000), "words.txt")["id"]
    job = client.post("/v1/jobs", gpt2_job(text, 1000000))
    path = f"/v1/jobs/{job['id']}"
    wait_for(lambda: client.get(path)["progress"]["step"], "it trains")
    shutil.rmtree(yard.dir / "agent-1" / "cache")
    yard.kill("trainer")
    again = wait_for(lambda: len((now := client.get(path))["attempts"]) > 1 and
                     now["attempts"][-1]["status"] == "training" and now, "it trains again", 60)
    assert len(again["attempts"]) == 2
    client.post(path + "/cancel", {})
    assert done(client, job)["status"] == "cancelled"


# ------------------------------------------------------------------ HTTP

def test_upload_that_breaks_off_leaves_nothing(yard, client):
    def temporary():
        return sorted((yard.dir / "blobs" / "tmp").iterdir())

    before = temporary()
    form = (b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n--b\r\n'
            b'Content-Disposition: form-data; name="file"; filename="a"\r\n\r\n')
    plugs = []
    for _ in range(8):
        plug = socket.create_connection((client.host, client.port), 10)
        plug.sendall((f"POST /v1/files HTTP/1.1\r\nHost: yard\r\nAuthorization: Bearer {client.key}"
                      "\r\nContent-Type: multipart/form-data; boundary=b\r\n"
                      "Content-Length: 5000000\r\n\r\n").encode() + form + b"z" * 50000)
        plugs.append(plug)
    wait_for(lambda: len(temporary()) == len(before) + 8, "all eight arrive")
    for plug in plugs:
        plug.close()
    wait_for(lambda: temporary() == before, "nothing of them is left", 10)
    assert not list(client.pages("/v1/files"))


def test_streams_that_drop_give_their_descriptors_back(yard, client):
    text = client.upload(words(20000), "words.txt")["id"]
    job = client.post("/v1/jobs", gpt2_job(text, 1000000))
    descriptors = lambda: len(os.listdir(f"/proc/{yard.pid('server')}/fd"))
    client.get("/v1/jobs")
    before, plugs = descriptors(), []
    for index in range(100):
        plug = socket.create_connection((client.host, client.port), 10)
        plug.sendall((f"GET /v1/jobs/{job['id']}/events HTTP/1.1\r\nHost: yard\r\nAuthorization: "
                      f"Bearer {client.key}\r\nAccept: text/event-stream\r\n\r\n").encode())
        if index % 2:
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # reset
        plugs.append(plug)
    for plug in plugs:
        assert plug.recv(15) == b"HTTP/1.1 200 OK"
        plug.close()
    wait_for(lambda: descriptors() < before + 20, "the streams are gone", 30)
    client.post(f"/v1/jobs/{job['id']}/cancel", {})
    assert done(client, job)["status"] == "cancelled"


# ------------------------------------------------------------------ load

NEVER = {  # what must have no row, whatever happens
    "a live attempt of an ended job":
        "select from attempts a join jobs j on j.id = a.job_id"
        " where a.status <> 'ended' and j.finished_at is not null",
    "a device held by an ended attempt":
        "select from attempt_devices ad join attempts a on a.id = ad.attempt_id"
        " where not ad.released and a.status = 'ended'",
    "a gap in a job's events":
        "select from jobs j join job_events e on e.job_id = j.id group by j.id, j.seq"
        " having count(*) <> j.seq or max(e.seq) <> j.seq",
    "an ended job without exactly one last event":
        "select from jobs j left join job_events e on e.job_id = j.id and e.type in"
        " ('job.succeeded', 'job.failed', 'job.cancelled') where j.finished_at is not null"
        " group by j.id having count(e.seq) <> 1",
    "a model without success, or the other way round":
        "select from jobs j full join models m on m.job_id = j.id"
        " where (j.status = 'succeeded') <> (m.id is not null)",
    "a miscounted attempt":
        "select from jobs j where attempt_count <>"
        " (select count(*) from attempts a where a.job_id = j.id)",
    "an idempotency key that hangs": "select from idempotency_keys where status is null",
}


def test_crowd_that_creates_and_cancels_while_machines_die(yard):
    end = time.monotonic() + 5
    clients = [yard.tenant()[0] for _ in range(2)]
    files = [client.upload(words(3000), "words.txt")["id"] for client in clients]

    def life(number):
        chance, client, mine = random.Random(number), clients[number % 2], []
        while time.monotonic() < end:
            steps = chance.choice([5, 100000])
            try:
                if not mine or chance.random() < 0.4:
                    job = gpt2_job(files[number % 2], steps, 3, hyperparameters={
                        "max_steps": steps, "batch_size": 4, "warmup_steps": 0})
                    mine.append(client.post("/v1/jobs", job)["id"])
                else:
                    client.post(f"/v1/jobs/{chance.choice(mine)}/cancel", {})
            except ApiError as error:
                assert error.status == 409, error  # it had ended
        return [(client, job) for job in mine]

    with concurrent.futures.ThreadPoolExecutor(8) as crowd:
        lives = [crowd.submit(life, number) for number in range(8)]
        while time.monotonic() < end:
            time.sleep(0.5)
            yard.kill("agent-1")
            yard.up()
        jobs = [made for life in lives for made in life.result()]
    for client, job in jobs:
        with contextlib.suppress(ApiError):
            client.post(f"/v1/jobs/{job}/cancel", {})
    mine = ",".join(f"'{job}'" for _, job in jobs)
    wait_for(lambda: not yard.sql(f"select from jobs where finished_at is null and id in ({mine})"),
             "all are over", 60)
    for what, statement in NEVER.items():
        assert yard.sql(f"select count(*) from ({statement}) x") == [["0"]], what
    wait_for(lambda: not yard.trainers(), "their trainers leave")
    yard.assert_tiled()
