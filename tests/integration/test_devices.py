# SPDX-License-Identifier: Apache-2.0
"""A machine with GPUs, as its agent sees them: NVML is a stand-in (tests/cuda/emulation/nvml.c)
that reads them from a file, everything else is real. There is no GPU here, so the trainer is
started by a script that notes which one it was given, and trains on the CPU."""
import json
import os
import subprocess

import pytest

from yards import BUILD, SLOWER, gpt2_job, succeeded, wait_for, words, SANITIZED

EVERY, STEPS = 40, 160 if SANITIZED else 600
NVML = BUILD / "tests/unit/workers/agent/libnvml_emulation.so"
NEW_DRIVER = "driver 999.10.01 99000"
SCRIPT = """#!/bin/sh
for word; do
	case $word in --dir=*) dir=${{word#--dir=}} ;; esac
done
echo "${{CUDA_VISIBLE_DEVICES-none}}" >>{told}
grep -q '"device":"cuda"' "$dir/attempt.json" || exit 90
sed -i 's/"device":"cuda"/"device":"cpu"/' "$dir/attempt.json"
unset CUDA_VISIBLE_DEVICES
exec {trainer} "$@"
"""


class Machine:
    """The stand-in's file, and what the trainers were given."""

    def __init__(self, folder, driver, *lines):
        self.file, self.told = folder / "gpus", folder / "told"
        self.write(driver, "gpu GPU-aaaa 2147483648 Stand-in GPU",
                   "gpu GPU-bbbb 2147483648 Stand-in GPU", *lines)
        script = folder / "trainer.sh"
        script.write_text(SCRIPT.format(
            told=self.told, trainer=BUILD / "workers/trainer/trainyard-trainer"))
        script.chmod(0o755)
        self.environment = {
            "TRAINYARD_DEVICE_KIND": "cuda", "TRAINYARD_NVML_LIBRARY": str(NVML),
            "TRAINYARD_EMULATION_NVML": str(self.file), "TRAINYARD_TRAINER": str(script)}

    def write(self, *lines):
        """At once: the agent reads it all the time."""
        self.lines = lines
        new = self.file.with_suffix(".new")
        new.write_text("".join(line + "\n" for line in lines), encoding="ascii")
        os.replace(new, self.file)

    def given(self):
        return self.told.read_text(encoding="ascii").split() if self.told.exists() else []


def refusal(machine, folder):
    """What an agent says that does not start."""
    done = subprocess.run(
        [BUILD / "workers/agent/trainyard-agent"], text=True, capture_output=True, check=False,
        stdin=subprocess.DEVNULL, timeout=30 * SLOWER,
        env={**os.environ, **machine.environment, "TRAINYARD_SERVER_URL": "http://127.0.0.1:1",
             "TRAINYARD_AGENT_KEY": "ty_none", "TRAINYARD_REGION": "us-east",
             "TRAINYARD_WORK_DIR": str(folder / "work")})
    assert done.returncode == 1, done
    return done.stderr.splitlines()[-1]


@pytest.fixture(name="why_refused", scope="module")
def why_refused_of_an_old_driver(tmp_path_factory):
    folder = tmp_path_factory.mktemp("old")
    why = refusal(Machine(folder, "driver 340.29 6050"), folder)
    if "this build has no CUDA" in why:
        pytest.skip("a build without CUDA")
    return why


def test_an_old_driver_is_refused(why_refused):
    why = why_refused
    assert "340.29 is for CUDA 6.5, but the trainer was built for CUDA 1" in why
    assert "install a driver for CUDA" in why


def log_of(yard):
    return (yard.dir / "log" / "agent-1.log").read_text(encoding="utf-8")


def devices_of(yard):
    devices = yard.operator.get("/v1/devices?limit=100")["data"]
    return {device["uuid"]: device for device in devices}


def free_devices(client):
    return next(row["devices"]["free"] for row in client.get("/v1/instance-types")["data"]
                if row["id"] == "cpu-dev")


@pytest.mark.usefixtures("why_refused")
def test_a_gpu_that_fails_is_cordoned_and_its_job_goes_on(make_yard, tmp_path):
    tmp_path.chmod(0o755)
    machine = Machine(tmp_path, NEW_DRIVER)
    machine.write(*machine.lines, "processes GPU-aaaa 1")
    yard = make_yard(devices=2, environment={"TRAINYARD_RATE_PER_S": "0", **machine.environment})
    client, _ = yard.tenant()
    before = devices_of(yard)
    assert set(before) == {"GPU-aaaa", "GPU-bbbb"}
    for device in before.values():
        assert device["name"] == "Stand-in GPU" and device["memory_bytes"] == 2147483648
        assert device["cordon"] is None and device["events"] == []
        assert device["agent"]["cuda"]["driver"] == "999.10.01"
        assert device["agent"]["cuda"]["driver_cuda"] == "99.0"
    text = client.upload(words(60000), "words.txt")["id"]
    job = client.post("/v1/jobs", gpt2_job(text, STEPS, EVERY))
    path = f"/v1/jobs/{job['id']}"

    # Somebody holds memory of the device: nobody else's job begins there.
    wait_for(lambda: "device.held" in log_of(yard), "the agent waits for the device", 60)
    assert machine.given() == []
    machine.write(*machine.lines[:-1])
    wait_for(lambda: list(client.pages(f"{path}/checkpoints")), "a checkpoint", 60)
    assert machine.given() == ["GPU-aaaa"]

    machine.write(*machine.lines, "xid GPU-bbbb 43", "xid GPU-aaaa 79")
    job = succeeded(client, job, 120)
    assert machine.given() == ["GPU-aaaa", "GPU-bbbb"]
    first, second = job["attempts"]
    assert (first["outcome"], first["reason"]) == ("failed", "platform_error"), first
    assert "Xid 79 of GPU-aaaa: the GPU has fallen off the bus" in json.dumps(first)
    assert second["outcome"] == "succeeded"
    # Each checkpoint bills the time before it; what came behind the last one, nobody pays.
    attempt = f"a.job_id = '{job['id']}' and a.number = 1"
    rows = yard.sql("select s.state, s.reason from segments s join attempts a"
                    f" on a.id = s.attempt_id where {attempt} order by lower(s.period)")
    saved = yard.sql("select count(*) from checkpoints c join attempts a on a.id = c.attempt_id"
                     f" where {attempt}")
    assert rows == [["unbilled", "starting"], *[["billed", "training"]] * int(saved[0][0]),
                    ["lost", "platform_error"]]

    after = devices_of(yard)
    assert "Xid 79" in after["GPU-aaaa"]["cordon"]["reason"]
    assert [event["kind"] for event in after["GPU-aaaa"]["events"]] == ["cordoned"]
    assert after["GPU-bbbb"]["cordon"] is None
    assert "Xid 43" in log_of(yard)
    assert free_devices(client) == 1

    # It stays so for the next agent, until an operator returns it.
    yard.kill("agent-1")
    machine.write(*machine.lines[:-2])  # the stand-in tells each process of all events
    yard.up()
    again = succeeded(client, client.post("/v1/jobs", gpt2_job(text, 5)), 60)
    assert again["status"] == "succeeded" and machine.given()[-1] == "GPU-bbbb"
    device = after["GPU-aaaa"]["id"]
    assert yard.operator.post(f"/v1/devices/{device}/return", None)["was_cordoned"]
    assert [event["kind"] for event in devices_of(yard)["GPU-aaaa"]["events"]] == [
        "cordoned", "returned"]
    assert free_devices(client) == 2
    succeeded(client, client.post("/v1/jobs", gpt2_job(text, 5)), 60)
    assert machine.given()[-1] == "GPU-aaaa"
