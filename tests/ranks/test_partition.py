# SPDX-License-Identifier: Apache-2.0
"""A job on two machines (two network namespaces on a bridge) whose network is cut in mid-run: both
sides leave with a reason within the deadline, and the job ends as if nothing had happened."""
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess

import pytest

from yards import BUILD, ROOT, gpt2_job, process_start, succeeded, wait_for, words, SANITIZED

EVERY = 20
STEPS = 100 if SANITIZED else 400
DEADLINE_MS = 10000


def ip(*arguments):
    subprocess.run(["ip", *map(str, arguments)], check=True, capture_output=True, text=True,
                   timeout=20)


def network_works():
    """Namespaces, bridges and isolated ports: root's, and not everywhere."""
    if os.getuid() != 0 or not shutil.which("ip") or not shutil.which("bridge"):
        return False
    name = f"ty{os.getpid() % 100000}t"
    try:
        ip("netns", "add", name)
        ip("netns", "del", name)
        ip("link", "add", name, "type", "bridge")
        ip("link", "del", name)
    except (subprocess.CalledProcessError, OSError):
        return False
    return True


class Machine:
    """A namespace with an agent of one device."""

    def __init__(self, network, index):
        self.network, self.yard = network, network.yard
        self.name = f"agent-{chr(ord('a') + index)}"
        self.namespace = f"{network.prefix}n{index}"
        self.port = f"{network.prefix}p{index}"
        self.address = f"{network.subnet}.{index + 2}"
        ip("netns", "add", self.namespace)
        ip("link", "add", self.port, "type", "veth", "peer", "name", "eth0", "netns",
           self.namespace)
        ip("link", "set", self.port, "master", network.bridge, "up")
        ip("-n", self.namespace, "addr", "add", f"{self.address}/24", "dev", "eth0")
        ip("-n", self.namespace, "link", "set", "eth0", "up")
        ip("-n", self.namespace, "link", "set", "lo", "up")
        self.start()

    def start(self):
        yard = self.yard
        key = subprocess.run(
            [BUILD / "server/trainyard-server", "create-key", f"--name={self.name}",
             "--role=agent", "--region=us-east"], check=True, capture_output=True, text=True,
            timeout=30, env={**os.environ, "TRAINYARD_DB_URL": yard.env["TRAINYARD_DB_URL"]})
        (yard.dir / self.name).mkdir()
        port = yard.env["TRAINYARD_AGENT_URL"].rpartition(":")[2]
        settings = {
            "SERVER_URL": f"http://{self.network.subnet}.1:{port}", "AGENT_KEY": key.stdout.strip(),
            "AGENT_NAME": self.name, "REGION": "us-east", "INSTANCE_TYPE": "cpu-dev",
            "DEVICES": "1", "WORK_DIR": str(yard.dir / self.name), "HOST": self.address,
            "COMM_DEADLINE_MS": str(DEADLINE_MS), "TOKENIZER_DIR": str(ROOT / ".cache/tokenizers"),
            "TRAINER": str(BUILD / "workers/trainer/trainyard-trainer")}
        with open(yard.dir / "log" / f"{self.name}.log", "ab") as log:
            self.agent = subprocess.Popen(
                ["ip", "netns", "exec", self.namespace, BUILD / "workers/agent/trainyard-agent"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, **{f"TRAINYARD_{k}": v for k, v in settings.items()}})

    def trainers(self):
        return self.yard.trainers(self.yard.dir / self.name)

    def said(self, event):
        """Lines of the agent's log with that event."""
        lines = (self.yard.dir / "log" / f"{self.name}.log").read_text().splitlines()
        told = [json.loads(line) for line in lines if line.startswith("{")]
        return [line for line in told if line["event"] == event]

    def remove(self):
        self.agent.terminate()
        self.agent.wait(30)
        for pid in self.trainers():
            os.kill(pid, signal.SIGKILL)
        ip("netns", "del", self.namespace)


class Network:
    def __init__(self, yard):
        self.yard = yard
        self.prefix = f"ty{os.getpid() % 100000}"
        self.bridge = f"{self.prefix}b"
        self.subnet = f"198.18.{random.randrange(1, 250)}"
        ip("link", "add", self.bridge, "type", "bridge")
        ip("addr", "add", f"{self.subnet}.1/24", "dev", self.bridge)
        ip("link", "set", self.bridge, "up")
        self.machines = [Machine(self, i) for i in range(2)]

    def part(self, yes):
        """The machines reach the yard, but not each other."""
        for machine in self.machines:
            subprocess.run(["bridge", "link", "set", "dev", machine.port, "isolated",
                            "on" if yes else "off"], check=True, timeout=20)

    def remove(self):
        for machine in self.machines:
            machine.remove()
        ip("link", "del", self.bridge)


@pytest.fixture(scope="module")
def yard(make_yard):
    if not network_works():
        pytest.skip("network namespaces and bridges cannot be made here")
    return make_yard(agents=0, environment={
        "TRAINYARD_RATE_PER_S": "0", "TRAINYARD_AGENT_ADDRESS": "0.0.0.0"})


@pytest.fixture(scope="module")
def network(yard):
    made = Network(yard)
    yield made
    made.remove()


@pytest.fixture(scope="module")
def undisturbed(yard, network):
    """(client, text file, the model's files of a run that nobody disturbed)"""
    client = yard.tenant()[0]
    text = client.upload(words(60000), "words.txt")["id"]
    job = succeeded(client, client.post("/v1/jobs", job_of(text)), 120)
    assert len(job["attempts"]) == 1 and all(m.said("trainer.started") for m in network.machines)
    return client, text, job["result"]["files"]


def job_of(text):
    return gpt2_job(text, STEPS, EVERY, resources={"instance_type": "cpu-dev", "count": 2})


def past_a_checkpoint(network, client, text):
    job = client.post("/v1/jobs", job_of(text))
    path = f"/v1/jobs/{job['id']}"
    wait_for(lambda: list(client.pages(f"{path}/checkpoints")), "a checkpoint", 90)
    assert client.get(path)["status"] == "running", "too fast to be disturbed"
    pids = [pid for machine in network.machines for pid in machine.trainers()]
    assert len(pids) == 2
    return job, pids


@contextlib.contextmanager
def held(pids):
    """The trainers make no step while the network changes under them, however fast they are."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    yield
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def test_machines_that_do_not_reach_each_other(yard, network, undisturbed):
    client, text, files = undisturbed
    job, pids = past_a_checkpoint(network, client, text)
    with held(pids):
        network.part(True)
    try:
        wait_for(lambda: all(process_start(pid) is None for pid in pids), "both ranks leave", 60)
        path = f"/v1/jobs/{job['id']}"
        first = wait_for(lambda: client.get(path)["attempts"][0]["outcome"] and
                         client.get(path)["attempts"][0], "the attempt ends", 30)
    finally:
        network.part(False)
    assert (first["outcome"], first["reason"]) == ("failed", "platform_error"), first
    assert "deadline" in first["message"] or "was lost" in first["message"], first
    job = succeeded(client, job, 240)
    assert job["result"]["files"] == files
    yard.assert_tiled()


@pytest.mark.parametrize("which", [0, 1])
def test_a_machine_that_is_cut_off(yard, network, undisturbed, which):
    """From the other one and from the yard: its own agent ends its trainer."""
    client, text, files = undisturbed
    job, pids = past_a_checkpoint(network, client, text)
    machine = network.machines[which]
    with held(pids):
        ip("link", "set", machine.port, "down")
    try:
        wait_for(lambda: all(process_start(pid) is None for pid in pids), "both ranks leave", 90)
    finally:
        ip("link", "set", machine.port, "up")
    job = succeeded(client, job, 240)
    assert job["attempts"][0]["reason"] in ("platform_error", "agent_lost"), job["attempts"]
    assert job["result"]["files"] == files
    yard.assert_tiled()
