# SPDX-License-Identifier: Apache-2.0
"""An elastic job on two machines, of which one is killed and none is free in its place: it goes on
with half the devices, and is billed for those."""
import os
import signal

import pytest

from yards import gpt2_job, succeeded, wait_for, words, SANITIZED

EVERY = 20
STEPS = 100 if SANITIZED else 160


@pytest.fixture(scope="module")
def yard(make_yard):
    """Waiting for all devices takes longer than the tests: what goes on at once does not wait."""
    return make_yard(agents=2, devices=2, environment={
        "TRAINYARD_RATE_PER_S": "0", "TRAINYARD_COMM_DEADLINE_MS": "15000",
        "TRAINYARD_ELASTIC_WAIT_MS": str(3600 * 1000)})


def elastic_job(text, min_data):
    return gpt2_job(text, STEPS, EVERY, resources={"instance_type": "cpu-dev", "count": 4},
                    hyperparameters={"batch_size": 8, "micro_batch_size": 1},
                    parallelism={"data": 4, "zero_stage": 2, "min_data": min_data})


def billed_devices(yard, job, attempt):
    """(devices of the attempt that were billed, of these the first machine's)"""
    first = job["attempts"][attempt - 1]["instance"]
    row, = yard.sql(
        "select count(distinct d.id), count(distinct d.id) filter (where g.name ="
        f" '{first}') from segments s join attempts a on a.id = s.attempt_id join devices d"
        " on d.id = s.device_id join agents g on g.id = d.agent_id where s.state = 'billed' and"
        f" a.job_id = '{job['id']}' and a.number = {attempt}")
    return tuple(map(int, row))


def told_steps(events):
    return [(e["data"]["step"], e["data"]["loss"]) for e in events if e["type"] == "step"]


def test_a_job_goes_on_with_the_machine_that_is_left(yard):
    client, _ = yard.tenant()
    text = client.upload(words(60000), "words.txt")["id"]
    whole = succeeded(client, client.post("/v1/jobs", elastic_job(text, 2)), 180)
    assert [(a["count"], a["data"]) for a in whole["attempts"]] == [(4, 4)]
    assert whole["parallelism"]["min_data"] == 2
    assert billed_devices(yard, whole, 1) == (4, 2)
    # Each machine's agent says that it has left: nobody waits for a lease to end.
    wait_for(lambda: yard.sql("select count(*) from devices where open_state <> 'idle'")
             == [["0"]], "all devices are free", 60)
    late = yard.sql(
        "select count(*) from segments s join devices d on d.id = s.device_id join attempt_parts p"
        " on p.attempt_id = s.attempt_id and p.agent_id = d.agent_id where s.reason = 'stopping'"
        " and upper(s.period) >= p.lease_until")
    assert late == [["0"]]

    job = client.post("/v1/jobs", elastic_job(text, 2))
    path = f"/v1/jobs/{job['id']}"
    wait_for(lambda: list(client.pages(f"{path}/checkpoints")), "a checkpoint", 90)
    lead, further = (m["instance"] for m in client.get(path)["attempts"][0]["machines"])
    assert client.get(path)["status"] == "running", "too fast to be disturbed"
    gone = [yard.pid(further), *yard.trainers(yard.dir / further)]
    assert len(gone) == 3
    for pid in gone:
        os.kill(pid, signal.SIGKILL)
    job = succeeded(client, job, 240)

    first, second = job["attempts"]
    assert first["outcome"] in ("failed", "lost"), first
    assert (first["count"], first["data"]) == (4, 4), first
    assert (second["count"], second["data"]) == (2, 2), second
    assert [(m["instance"], m["count"]) for m in second["machines"]] == [(lead, 2)]
    # The spec is the customer's still; the batch is the same, and so is what was learned.
    assert job["parallelism"] == whole["parallelism"] and job["resources"]["count"] == 4
    for metric in ("loss", "validation_loss"):
        assert job["result"]["metrics"][metric] == pytest.approx(
            whole["result"]["metrics"][metric], rel=1e-4)
    # It went on with the step after the last checkpoint, and each step's loss is the whole's.
    events = list(client.pages(f"{path}/events"))
    again = max(n for n, e in enumerate(events) if e["type"] == "job.assigned")
    saved = [e["data"]["step"] for e in events[:again] if e["type"] == "checkpoint"]
    assert [n for n, _ in told_steps(events[again:])][0] == max(saved) + 1
    losses = dict(told_steps(events))
    before = dict(told_steps(client.pages(f"/v1/jobs/{whole['id']}/events")))
    both = losses.keys() & before.keys()  # not all steps are told
    assert {1, STEPS} <= both
    for step in both:
        assert losses[step] == pytest.approx(before[step], rel=1e-3), step
    kept = {e["data"]["step"] for e in events if e["type"] == "checkpoint"}
    assert kept == set(range(EVERY, STEPS + 1, EVERY))
    # Billed is what each attempt had.
    assert billed_devices(yard, job, 1) == (4, 2)
    assert billed_devices(yard, job, 2) == (2, 2)
    usage = client.get(path)["usage"]
    total, = yard.sql("select round(sum(extract(epoch from upper(period) - lower(period))), 3)"
                      f" from segments where state = 'billed' and job_id = '{job['id']}'")
    assert usage["billed_seconds"] == pytest.approx(float(total[0]), abs=1e-6)
    yard.assert_tiled()
