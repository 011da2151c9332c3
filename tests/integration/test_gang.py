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
    assert two["parallelism"]["data"] == 2 and len(two["attempts"]) == 1
    for metric in ("loss", "validation_loss"):
        assert two["result"]["metrics"][metric] == pytest.approx(
            alone["result"]["metrics"][metric], rel=1e-5)
    devices = yard.sql("select count(distinct device_id) from segments where state = 'billed' and"
                       f" job_id = '{two['id']}'")
    assert devices == [["2"]]

    # Three do not fit on one machine. One of the other machine's is killed.
    gang = client.post("/v1/jobs", job_of(text, 3))
    path = f"/v1/jobs/{gang['id']}"
    wait_for(lambda: list(client.pages(f"{path}/checkpoints")), "a checkpoint", 90)
    further = min(((yard.trainers(yard.dir / f"agent-{n}")) for n in (1, 2)), key=len)
    assert len(further) == 1 and len(yard.trainers()) == 3
    os.kill(further[0], signal.SIGKILL)
    gang = succeeded(client, gang, 150)
    first = gang["attempts"][0]
    assert (first["reason"], first["rank"], first["signal"]) == ("trainer_died", 2, 9), first
    undisturbed = succeeded(client, client.post("/v1/jobs", job_of(text, 3)), 120)
    assert gang["result"]["files"] == undisturbed["result"]["files"]
    yard.assert_tiled()
