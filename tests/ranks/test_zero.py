# SPDX-License-Identifier: Apache-2.0
"""Jobs whose ranks keep a part of the state each, through the API: each rank saves its part; one
that is killed or stopped costs nothing but time, and no step twice before the checkpoint."""
import os
import signal

import pytest

from yards import get_patiently, gpt2_job, succeeded, wait_for, words

RANKS, EVERY, STEPS = 4, 20, 160


@pytest.fixture(scope="module")
def yard(make_yard):
    return make_yard(devices=RANKS, environment={
        "TRAINYARD_RATE_PER_S": "0", "TRAINYARD_COMM_DEADLINE_MS": "15000"})


@pytest.fixture(scope="module")
def data(yard):
    client = yard.tenant()[0]
    return client, client.upload(words(60000), "words.txt")["id"]


def zero_job(text, stage):
    return gpt2_job(text, STEPS, EVERY, parallelism={"zero_stage": stage},
                    resources={"instance_type": "cpu-dev", "count": RANKS})


@pytest.mark.parametrize("stage, rank, how", [
    (1, 0, signal.SIGKILL), (2, 1, signal.SIGSTOP), (3, 3, signal.SIGKILL)])
def test_ranks_that_keep_a_part_each_survive_a_lost_one(yard, data, stage, rank, how):
    client, text = data
    whole = succeeded(client, client.post("/v1/jobs", zero_job(text, stage)), 240)
    assert whole["parallelism"]["zero_stage"] == stage and len(whole["attempts"]) == 1
    job = client.post("/v1/jobs", zero_job(text, stage))
    path = f"/v1/jobs/{job['id']}"
    saved = wait_for(lambda: list(client.pages(f"{path}/checkpoints")), "a checkpoint", 90)
    names = {file["name"] for file in saved[0]["files"]}
    assert {f"shard-0000{i + 1}-of-0000{RANKS}.safetensors" for i in range(RANKS)} < names
    assert "optimizer.safetensors" not in names
    assert get_patiently(client, path)["status"] == "running", "too fast to be disturbed"
    os.kill(yard.trainer_of(rank), how)
    job = succeeded(client, job, 240)
    assert len(job["attempts"]) > 1 and job["attempts"][0]["outcome"] == "failed"
    # Every checkpoint once: what came before the loss was not trained again from the beginning.
    steps = [event["data"]["step"] for event in client.pages(f"{path}/events")
             if event["type"] == "checkpoint"]
    assert steps == list(range(EVERY, STEPS + 1, EVERY)), steps
    weights = [{file["name"]: file["sha256"] for file in j["result"]["files"]}["model.safetensors"]
               for j in (whole, job)]
    assert weights[0] == weights[1]
    yard.assert_tiled()
