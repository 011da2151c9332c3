# SPDX-License-Identifier: Apache-2.0
"""A job of two ranks, on one machine and on two: the same model, whichever way, and when a rank is
killed. tests/ranks has every rank, every way to lose one, and networks that are cut."""
import os
import signal

import pytest

from yards import gpt2_job, succeeded, wait_for, words, SANITIZED

EVERY, STEPS = 20, 60 if SANITIZED else 160


@pytest.fixture(scope="module")
def yard(make_yard):
    return make_yard(agents=2, devices=2, environment={"TRAINYARD_RATE_PER_S": "0"})


def job_of(text, ranks):
    return gpt2_job(text, STEPS, EVERY, hyperparameters={"batch_size": 12},
                    resources={"instance_type": "cpu-dev", "count": ranks})


def test_ranks_on_one_machine_and_on_two(yard):
    client, _ = yard.tenant()
    text = client.upload(words(60000), "words.txt")["id"]
    alone, two = (succeeded(client, client.post("/v1/jobs", job_of(text, ranks)), 120)
                  for ranks in (1, 2))
    assert len(two["attempts"]) == 1
    # Nobody said how they share the job: the yard has, and the attempt ran so.
    assert alone["parallelism_chosen"] is None
    chosen = two["parallelism_chosen"]
    assert {key: chosen[key] for key in two["parallelism"]} == two["parallelism"]
    assert chosen["data"] * chosen["tensor"] * chosen["pipeline"] == 2
    assert "fastest that fits" in chosen["reason"], chosen
    assert two["plan"]["micro_batch"] == two["hyperparameters"]["micro_batch_size"]
    assert [m["count"] for m in two["attempts"][0]["machines"]] == [2]
    for metric in ("loss", "validation_loss"):
        assert two["result"]["metrics"][metric] == pytest.approx(
            alone["result"]["metrics"][metric], rel=1e-5)
    devices = yard.sql("select count(distinct device_id) from segments where state = 'billed' and"
                       f" job_id = '{two['id']}'")
    assert devices == [["2"]]

    # Each rank saved its part of the optimizer's state, and so of the whole: a base all the same.
    assert two["parallelism"]["zero_stage"] > 0, two["parallelism_chosen"]
    saved = client.get(f"/v1/jobs/{two['id']}/checkpoints")["data"][0]
    assert saved["step"] == STEPS
    assert any(f["name"].startswith("shard-") for f in saved["files"]), saved
    child = succeeded(client, client.post("/v1/jobs", {
        **job_of(text, 2), "model": {"base": saved["id"]}, "hyperparameters": {
            "batch_size": 12, "max_steps": 2, "learning_rate": 0, "warmup_steps": 0}}), 90)
    assert child["result"]["metrics"]["validation_loss"] == pytest.approx(
        two["result"]["metrics"]["validation_loss"], rel=1e-6)

    # Three do not fit on one machine. One of the other machine's is killed.
    gang = client.post("/v1/jobs", job_of(text, 3))
    path = f"/v1/jobs/{gang['id']}"
    wait_for(lambda: list(client.pages(f"{path}/checkpoints")), "a checkpoint", 90)
    further = min(((yard.trainers(yard.dir / f"agent-{n}")) for n in (1, 2)), key=len)
    assert len(further) == 1 and len(yard.trainers()) == 3
    os.kill(further[0], signal.SIGKILL)
    gang = succeeded(client, gang, 150)
    first = gang["attempts"][0]
    machines = first["machines"]
    assert [(m["first_rank"], m["count"]) for m in machines] == [(0, 2), (2, 1)], machines
    assert machines[0]["instance"] == first["instance"] != machines[1]["instance"]
    assert (first["reason"], first["rank"], first["signal"]) == ("trainer_died", 2, 9), first
    undisturbed = succeeded(client, client.post("/v1/jobs", job_of(text, 3)), 120)
    assert gang["result"]["files"] == undisturbed["result"]["files"]
    yard.assert_tiled()


def test_a_machine_s_devices_are_not_free_before_it_has_left(yard):
    """A gang of all devices ends while the further machine's agent does not hear of it."""
    client, _ = yard.tenant()
    text = client.upload(words(60000), "words.txt")["id"]
    job = client.post("/v1/jobs", job_of(text, 4))
    path = f"/v1/jobs/{job['id']}"
    wait_for(lambda: list(client.pages(f"{path}/checkpoints")), "a checkpoint", 90)
    lead, further = (m["instance"] for m in client.get(path)["attempts"][0]["machines"])
    agent = yard.pid(further)
    os.kill(agent, signal.SIGSTOP)
    try:
        os.kill(yard.trainer_of(0), signal.SIGKILL)

        def states():
            return {tuple(row) for row in yard.sql(
                "select distinct g.name, d.open_state from devices d join agents g"
                " on g.id = d.agent_id where d.deregistered_at is null")}

        wait_for(lambda: states() == {(lead, "idle"), (further, "stopping")}, "the end is told")
        assert client.get(path)["status"] == "queued"
    finally:
        os.kill(agent, signal.SIGCONT)
    job = succeeded(client, job, 150)
    assert [a["reason"] for a in job["attempts"]] == ["trainer_died", None]
    yard.assert_tiled()
