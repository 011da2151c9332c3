# SPDX-License-Identifier: Apache-2.0
"""Jobs of several ranks on one machine, through the API: as one rank would train them; and
whichever rank is killed or stopped, the job ends as if nothing had happened."""
import os
import signal

import pytest

from yards import (SANITIZED, done, get_patiently, gpt2_job, process_start, succeeded, wait_for,
                   words)

DEVICES = 4
EVERY = 20
STEPS = 120 if SANITIZED else 200
# What stopped ranks are waited for: long enough for a loaded machine, short enough for a test.
DEADLINE_MS = 15000


@pytest.fixture(scope="module")
def yard(make_yard):
    return make_yard(devices=DEVICES, environment={
        "TRAINYARD_RATE_PER_S": "0", "TRAINYARD_COMM_DEADLINE_MS": str(DEADLINE_MS)})


@pytest.fixture(scope="module")
def data(yard):
    client = yard.tenant()[0]
    return client, client.upload(words(60000), "words.txt")["id"]


def ranks_job(text, ranks, steps=STEPS, **more):
    return gpt2_job(text, steps, EVERY, resources={"instance_type": "cpu-dev", "count": ranks},
                    parallelism={"data": ranks}, evaluation={"every_steps": EVERY}, **more)


def told(client, job, kind):
    """{step: the event's data} of one kind."""
    path = f"/v1/jobs/{job['id']}/events"
    return {event["data"]["step"]: event["data"] for event in client.pages(path)
            if event["type"] == kind}


@pytest.fixture(scope="module")
def alone(data):
    """(the job on one rank, its evaluations, its steps as far as they are told)"""
    client, text = data
    job = succeeded(client, client.post("/v1/jobs", ranks_job(text, 1)), 120)
    return job, told(client, job, "evaluation"), told(client, job, "step")


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_train_as_one_does(yard, data, alone, ranks):
    client, text = data
    job = succeeded(client, client.post("/v1/jobs", ranks_job(text, ranks)), 180)
    assert job["parallelism"] == {"data": ranks, "tensor": 1, "pipeline": 1, "zero_stage": 0,
                                  "interleave": 1}
    assert job["hyperparameters"]["micro_batch_size"] == 8 // ranks
    assert len(job["attempts"]) == 1
    _, evaluations, steps = alone
    mine = told(client, job, "evaluation")
    assert set(mine) == set(evaluations) and len(mine) == STEPS // EVERY
    for step, value in evaluations.items():
        assert mine[step]["validation_loss"] == pytest.approx(value["validation_loss"], rel=1e-6)
    both = told(client, job, "step")
    assert STEPS in both
    for step in set(both) & set(steps):
        assert both[step]["loss"] == pytest.approx(steps[step]["loss"], rel=1e-6), step
    # Every device is billed, each for the same time, and none of them twice.
    usage = client.get(f"/v1/jobs/{job['id']}/usage")
    billed = {}
    for segment in usage["segments"]:
        if segment["state"] == "billed":
            billed[segment["device_id"]] = (billed.get(segment["device_id"], 0) +
                                            segment["duration_ms"])
    assert len(billed) == ranks and len(set(billed.values())) == 1, billed
    assert job["usage"]["billed_seconds"] * 1000 == pytest.approx(sum(billed.values()), abs=0.5)
    yard.assert_tiled()


# ------------------------------------------------------------------ lost ranks

def past_a_checkpoint(yard, client, text, ranks):
    job = client.post("/v1/jobs", ranks_job(text, ranks))
    path = f"/v1/jobs/{job['id']}"
    wait_for(lambda: list(client.pages(f"{path}/checkpoints")), "a checkpoint", 90)
    assert get_patiently(client, path)["status"] == "running", "too fast to be disturbed"
    assert len(yard.trainers()) == ranks
    return job


@pytest.fixture(scope="module")
def undisturbed(data):
    """{ranks: the model's files of a job that nobody disturbed}"""
    client, text = data
    jobs = {ranks: client.post("/v1/jobs", ranks_job(text, ranks)) for ranks in (2, DEVICES)}
    return {ranks: succeeded(client, job, 240)["result"]["files"] for ranks, job in jobs.items()}


KILLED, STOPPED = signal.SIGKILL, signal.SIGSTOP


@pytest.mark.parametrize("ranks, rank", [(2, 0), (2, 1), (4, 0), (4, 1), (4, 2), (4, 3)])
@pytest.mark.parametrize("how", [KILLED, STOPPED], ids=["killed", "stopped"])
def test_job_survives_a_lost_rank(yard, data, undisturbed, ranks, rank, how):
    client, text = data
    job = past_a_checkpoint(yard, client, text, ranks)
    pid = yard.trainer_of(rank)
    os.kill(pid, how)
    job = succeeded(client, job, 240)
    outcomes = [a["outcome"] for a in job["attempts"]]
    assert len(outcomes) > 1 and outcomes[0] == "failed", job["attempts"]
    first = job["attempts"][0]
    if how == signal.SIGKILL:
        assert (first["reason"], first["rank"], first["signal"]) == ("trainer_died", rank, 9), first
    else:
        assert first["reason"] in ("platform_error", "stalled"), first
        assert f"rank {rank}" in first["message"], first
    assert job["result"]["files"] == undisturbed[ranks]  # names, sizes and SHA-256
    assert process_start(pid) is None
    yard.assert_tiled()


def test_cancel_reaches_all_ranks(yard, data):
    client, text = data
    job = client.post("/v1/jobs", ranks_job(text, DEVICES, 1000000))
    path = f"/v1/jobs/{job['id']}"
    wait_for(lambda: client.get(path)["progress"]["step"], "it trains", 90)
    client.post(f"{path}/cancel", {})
    job = done(client, job, 60)
    assert (job["status"], [a["outcome"] for a in job["attempts"]]) == ("cancelled", ["cancelled"])
    wait_for(lambda: not yard.trainers(), "all ranks are gone")
    yard.assert_tiled()


def test_terminating_one_rank_ends_all_with_a_checkpoint(yard, data, undisturbed):
    """A machine that goes away sends SIGTERM, to whichever rank first."""
    client, text = data
    job = past_a_checkpoint(yard, client, text, DEVICES)
    os.kill(yard.trainer_of(DEVICES - 1), signal.SIGTERM)
    job = succeeded(client, job, 240)
    assert [a["outcome"] for a in job["attempts"]] == ["failed", "succeeded"], job["attempts"]
    assert "SIGTERM" in job["attempts"][0]["message"], job["attempts"]
    assert job["result"]["files"] == undisturbed[DEVICES]


def test_ranks_outlive_their_agent(yard, data, undisturbed):
    client, text = data
    job = past_a_checkpoint(yard, client, text, DEVICES)
    before = yard.trainers()
    yard.kill("agent-1")
    assert yard.trainers() == before
    yard.up()
    job = succeeded(client, job, 240)
    assert len(job["attempts"]) == 1 and job["result"]["files"] == undisturbed[DEVICES]
