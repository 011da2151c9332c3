# SPDX-License-Identifier: Apache-2.0
"""Jobs that start from what other jobs have left: weights, config and tokenizer reach the trainer,
also through kill -9, and stay as long as they are needed."""
import json
import math

import pytest

from yards import (ROOT, ApiError, done, gpt2_job, succeeded, wait_for, words)

FLAT = {"schedule": "constant", "warmup_steps": 0, "learning_rate": 0.003, "batch_size": 8}


def losses(client, job):
    """Losses of the steps that were told, in order."""
    steps = [event["data"] for event in client.pages(f"/v1/jobs/{job['id']}/events")
             if event["type"] == "step"]
    return [step["loss"] for step in sorted(steps, key=lambda step: step["step"])]


def pairs(count):
    """Prompts with completions, as JSONL."""
    return "".join(json.dumps({"prompt": f"yard {i % 7}: ", "completion": "the train goes north"})
                   + "\n" for i in range(count)).encode()


@pytest.fixture(scope="module")
def trained(yard):
    """(client, text, a job that has learned it)"""
    client = yard.tenant()[0]
    text = client.upload(words(20000), "words.txt")["id"]
    job = client.post("/v1/jobs", gpt2_job(text, 150, hyperparameters=FLAT))
    return client, text, succeeded(client, job)


def child_of(base, text, steps, **more):
    return {**gpt2_job(text, steps, hyperparameters=FLAT), "model": {"base": base}, **more}


def test_training_goes_on_where_the_base_has_ended(trained):
    client, text, base = trained
    child = succeeded(client, client.post("/v1/jobs", child_of(base["id"], text, 3)))
    assert child["model"] == {"config": base["model"]["config"], "base": base["id"]}
    fresh, last, first = losses(client, base)[0], losses(client, base)[-1], losses(client, child)[0]
    assert fresh > 5 and last < 3, (fresh, last)
    assert abs(first - last) < 0.5, (first, last)
    model = succeeded(client, client.post(
        "/v1/jobs", child_of(base["result"]["model"], text, 3)))
    assert losses(client, model) == losses(client, child)  # the same weights by another name


def test_a_checkpoint_is_a_base_though_it_is_trimmed_meanwhile(yard, client):
    text = client.upload(words(20000), "words.txt")["id"]
    long = client.post("/v1/jobs", gpt2_job(text, 1000000, every=30,
                                            checkpoint={"every_steps": 30, "keep": 1}))
    path = f"/v1/jobs/{long['id']}/checkpoints"

    def post(base):
        return client.post("/v1/jobs", child_of(base, text, 3), {"Idempotency-Key": base})

    def adopt():
        """A child of the newest checkpoint, unless a newer one trimmed it just now."""
        rows = client.get(path)["data"]
        try:
            return rows and post(rows[0]["id"])
        except ApiError as error:
            assert error.error["param"] == "$.model.base", error
            return None

    child = wait_for(adopt, "a checkpoint is adopted")
    wait_for(lambda: next(row for row in client.pages(path)
                          if row["id"] == child["model"]["base"])["trimmed"], "it is trimmed")
    # The same request again is answered as it was, though it could not be made any more.
    assert post(child["model"]["base"])["id"] == child["id"]
    child = succeeded(client, child)
    assert losses(client, child)[0] < math.log(256)
    client.post(f"/v1/jobs/{long['id']}/cancel", {})
    assert done(client, long)["status"] == "cancelled"


def test_a_base_survives_the_death_of_trainers(yard, trained):
    client, text, base = trained
    child = client.post("/v1/jobs", child_of(base["id"], text, 400,
                                             checkpoint={"every_steps": 100, "keep": 1}))
    path = f"/v1/jobs/{child['id']}"
    wait_for(lambda: (client.get(path)["progress"]["step"] or 0) > 5, "it trains")
    yard.kill("trainer")
    child = succeeded(client, child, 90)
    assert [attempt["outcome"] for attempt in child["attempts"]] == ["failed", "succeeded"]
    assert max(losses(client, child)) < 4  # no attempt began with fresh weights


def test_adapters_are_trained_on_a_base_and_are_none(trained):
    client, _, base = trained
    file = client.upload(pairs(200), "pairs.jsonl")["id"]
    spec = child_of(base["id"], file, 40, task="fine_tune", validation_file=file, data={
        "format": "jsonl", "sequence_length": 32}, lora={"rank": 4, "alpha": 8})
    job = succeeded(client, client.post("/v1/jobs", spec))
    names = {file["name"] for file in job["result"]["files"]}
    assert "adapter_model.safetensors" in names and "model.safetensors" not in names, names
    assert job["lora"]["target_modules"] == ["c_attn"]
    assert losses(client, job)[-1] < losses(client, job)[0]
    with pytest.raises(ApiError) as refused:
        client.post("/v1/jobs", {**spec, "model": {"base": job["id"]}})
    assert refused.value.error["param"] == "$.model.base", refused.value
    assert base["id"] in refused.value.error["message"], refused.value


def test_where_the_base_may_be_its_children_may_be(yard):
    client, _ = yard.tenant(["us"])
    text = client.upload(words(5000), "words.txt")["id"]
    base = succeeded(client, client.post("/v1/jobs", gpt2_job(
        text, 3, residency=["us-east"], hyperparameters=FLAT)))
    child = succeeded(client, client.post("/v1/jobs", child_of(base["id"], text, 3)))
    assert child["residency"]["set"] == ["us-east"]
    with pytest.raises(ApiError) as refused:
        client.post("/v1/jobs", child_of(base["id"], text, 3, residency=["us-west"]))
    assert refused.value.error["code"] == "residency_refused", refused.value
    assert refused.value.error["param"] == "$.model.base", refused.value


@pytest.mark.skipif(not (ROOT / ".cache/tokenizers/gpt2.json").is_file(),
                    reason="./run deps could not fetch the vocabulary")
def test_the_published_vocabulary_reaches_the_trainer(client):
    text = client.upload(words(20000), "words.txt")["id"]
    config = {"family": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 32}
    job = succeeded(client, client.post("/v1/jobs", gpt2_job(
        text, 3, model={"config": config}, data={"tokenizer": "gpt2"}, hyperparameters=FLAT)))
    assert job["model"]["config"]["vocab_size"] == 50257
    assert abs(losses(client, job)[0] - math.log(50257)) < 0.5
