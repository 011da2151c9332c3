# SPDX-License-Identifier: Apache-2.0
"""Jobs on several machines: a gang of agents trains one job, and when one of them loses a trainer,
its agent or its way to the others, the job ends as if nothing had happened."""
import os
import signal

import pytest

from yards import gpt2_job, succeeded, wait_for, words, SANITIZED

EVERY = 20
STEPS = 100 if SANITIZED else 160
DEADLINE_MS = 15000


def gang_job(text, ranks, steps=STEPS, **more):
    return gpt2_job(text, steps, EVERY, resources={"instance_type": "cpu-dev", "count": ranks},
                    **more)


@pytest.fixture(scope="module")
def yard(make_yard):
    return make_yard(agents=2, devices=2, environment={
        "TRAINYARD_RATE_PER_S": "0", "TRAINYARD_COMM_DEADLINE_MS": str(DEADLINE_MS)})


@pytest.fixture(scope="module")
def data(yard):
    client = yard.tenant()[0]
    return client, client.upload(words(60000), "words.txt")["id"]


@pytest.fixture(scope="module")
def undisturbed(yard, data):
    """The model's files of a gang of four on two machines that nobody disturbed."""
    client, text = data
    job = succeeded(client, client.post("/v1/jobs", gang_job(text, 4)), 180)
    assert len(job["attempts"]) == 1
    assigned = [e["data"] for e in client.pages(f"/v1/jobs/{job['id']}/events")
                if e["type"] == "job.assigned"]
    assert [(a["count"], a["machines"]) for a in assigned] == [(4, 2)]
    billed = yard.sql("select d.agent_id, count(distinct s.device_id) from segments s join devices"
                      f" d on d.id = s.device_id where s.job_id = '{job['id']}'"
                      " and s.state = 'billed' group by 1")
    assert [count for _, count in billed] == ["2", "2"]
    left = yard.sql("select count(*) from attempt_rendezvous")
    assert left == [["0"]]
    yard.assert_tiled()
    return job["result"]["files"]


def test_gang_trains_as_one_machine_does(data, undisturbed):
    """A gang of three of four devices; and what two ranks on one machine make."""
    client, text = data
    both = [succeeded(client, client.post("/v1/jobs", gang_job(
        text, 3, hyperparameters={"max_steps": 40, "batch_size": 12, "warmup_steps": 5})), 120)
            for _ in range(2)]
    assert both[0]["result"]["files"] == both[1]["result"]["files"]
    assert undisturbed


def trainers_of(yard, agent):
    return yard.trainers(yard.dir / f"agent-{agent}")


def past_a_checkpoint(yard, client, text):
    job = client.post("/v1/jobs", gang_job(text, 4))
    path = f"/v1/jobs/{job['id']}"
    wait_for(lambda: list(client.pages(f"{path}/checkpoints")), "a checkpoint", 90)
    assert client.get(path)["status"] == "running", "too fast to be disturbed"
    assert [len(trainers_of(yard, n)) for n in (1, 2)] == [2, 2]
    return job


@pytest.mark.parametrize("agent", [1, 2])
def test_gang_survives_a_machine_without_trainers(yard, data, undisturbed, agent):
    client, text = data
    job = past_a_checkpoint(yard, client, text)
    for pid in trainers_of(yard, agent):
        os.kill(pid, signal.SIGKILL)
    job = succeeded(client, job, 240)
    assert [a["outcome"] for a in job["attempts"]] == ["failed", "succeeded"], job["attempts"]
    first = job["attempts"][0]
    assert (first["reason"], first["signal"]) == ("trainer_died", 9), first
    assert job["result"]["files"] == undisturbed
    yard.assert_tiled()


def test_gang_survives_an_agent_that_is_restarted(yard, data, undisturbed):
    client, text = data
    job = past_a_checkpoint(yard, client, text)
    before = yard.trainers()
    yard.kill("agent-2")
    assert yard.trainers() == before
    yard.up()
    job = succeeded(client, job, 240)
    assert len(job["attempts"]) == 1 and job["result"]["files"] == undisturbed


def test_gang_survives_a_machine_that_stops(yard, data, undisturbed):
    """Its agent and its trainers are stopped, all at once: the others wait until their deadline, or
    the yard gives its lease up."""
    client, text = data
    job = past_a_checkpoint(yard, client, text)
    stopped = [yard.pid("agent-2"), *trainers_of(yard, 2)]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: not trainers_of(yard, 1), "the other machine's ranks leave", 90)
    os.kill(stopped[0], signal.SIGCONT)
    job = succeeded(client, job, 240)
    assert [a["outcome"] for a in job["attempts"]][-1] == "succeeded", job["attempts"]
    assert len(job["attempts"]) == 2 and job["result"]["files"] == undisturbed
    yard.assert_tiled()
