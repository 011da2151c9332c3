# SPDX-License-Identifier: Apache-2.0
"""Parts die while a job trains: it ends as if nothing had happened, bit for bit."""
import pytest

from yards import done, get_patiently, gpt2_job, succeeded, wait_for, words, SANITIZED

EVERY = 60
STEPS = 240 if SANITIZED else 1500


@pytest.fixture(scope="module")
def undisturbed(yard):
    """(client, text file, the model's files of a run that nobody disturbed)"""
    client = yard.tenant()[0]
    text = client.upload(words(60000), "words.txt")["id"]
    job = succeeded(client, client.post("/v1/jobs", gpt2_job(text, STEPS, EVERY)), 90)
    assert len(job["attempts"]) == 1
    return client, text, job["result"]["files"]


def step_of(client, job):
    job = get_patiently(client, f"/v1/jobs/{job['id']}")
    return (job["progress"]["step"] or 0) if job else 0


def train_past_a_checkpoint(client, text):
    job = client.post("/v1/jobs", gpt2_job(text, STEPS, EVERY))
    wait_for(lambda: step_of(client, job) > EVERY + 5, "it is past its first checkpoint", 60)
    wait_for(lambda: list(client.pages(f"/v1/jobs/{job['id']}/checkpoints")), "a checkpoint", 60)
    assert client.get(f"/v1/jobs/{job['id']}")["status"] == "running", "too fast to be disturbed"
    return job


def disturb_server(yard):
    yard.kill("server")
    yard.up()


def disturb_agent(yard):
    before = yard.trainers()
    yard.kill("agent-1")
    assert yard.trainers() == before  # its trainers go on
    yard.up()


def disturb_trainer(yard):
    yard.kill("trainer")


def disturb_agent_and_trainer(yard):
    yard.kill("agent-1")
    yard.kill("trainer")
    yard.up()


def disturb_postgres(yard):
    yard.stop_postgres_immediately()
    yard.up()


@pytest.mark.parametrize("disturb, attempts", [
    (disturb_server, 1), (disturb_agent, 1), (disturb_postgres, 1), (disturb_trainer, 2),
    (disturb_agent_and_trainer, 2)], ids=lambda value: getattr(value, "__name__", None))
def test_job_survives(yard, undisturbed, disturb, attempts):
    client, text, files = undisturbed
    job = train_past_a_checkpoint(client, text)
    disturb(yard)
    job = succeeded(client, job, 150)
    assert job["result"]["files"] == files  # names, sizes and SHA-256
    assert [a["outcome"] for a in job["attempts"]][-1] == "succeeded"
    assert len(job["attempts"]) == attempts
    yard.assert_tiled()
    # Nobody pays twice for a step: no two billed segments of the job overlap.
    overlaps = yard.sql(
        "select a.id, b.id from segments a join segments b on a.job_id = b.job_id and a.id < b.id"
        f" and a.period && b.period where a.job_id = '{job['id']}'")
    assert not overlaps


def test_trainer_that_dies_three_times_without_progress_fails_the_job(yard, undisturbed):
    client, text, _ = undisturbed
    job = client.post("/v1/jobs", gpt2_job(text, 1000000))
    path = f"/v1/jobs/{job['id']}"

    def training(number):
        now = client.get(path)
        last = now["attempts"][-1] if now["attempts"] else {}
        return last.get("number") == number and last["status"] == "training" and yard.trainers()

    for number in (1, 2, 3):
        wait_for(lambda n=number: training(n), f"attempt {number} trains", 60)
        yard.kill("trainer")
    job = done(client, job, 60)
    assert job["status"] == "failed"
    assert (job["error"]["code"], job["error"]["signal"], job["error"]["rank"]) == (
        "trainer_died", 9, 0)
    assert job["error"]["last_lines"]
    assert [a["outcome"] for a in job["attempts"]] == ["failed"] * 3 or (
        {a["outcome"] for a in job["attempts"]} <= {"failed", "lost"})
    assert job["usage"]["billed_seconds"] == 0  # a platform's fault is never billed
    yard.assert_tiled()


def test_yard_restarts_from_its_folder(yard, undisturbed):
    client, text, files = undisturbed
    yard.down()
    assert yard.pid("server") is None and not yard.trainers()
    yard.up()
    job = succeeded(client, client.post("/v1/jobs", gpt2_job(text, STEPS, EVERY)), 90)
    assert job["result"]["files"] == files
