# SPDX-License-Identifier: Apache-2.0
"""docker/nginx.conf in front of a yard: refused framing, streams line by line, whole uploads."""
import pathlib
import re
import signal
import socket
import subprocess

import pytest

from yards import ROOT, Client, done, gpt2_job, wait_for, words


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def configuration(text, yard, ports, folder):
    """The shipped file with its addresses put in place of the containers' names."""
    agents = yard.env["TRAINYARD_AGENT_URL"].removeprefix("http://")
    for old, new in ((r"server server-\d:8080;", f"server {yard.url.removeprefix('http://')};"),
                     (r"server server-\d:8081;", f"server {agents};"),
                     (r"listen 8080;", f"listen 127.0.0.1:{ports[0]};"),
                     (r"listen 8081;", f"listen 127.0.0.1:{ports[1]};"),
                     (r"worker_processes auto;", "worker_processes 1; daemon off;"),
                     (r"/tmp/nginx", f"{folder}/nginx")):
        text, count = re.subn(old, new, text)
        assert count, old
    return text


@pytest.fixture(scope="module")
def front(yard, tmp_path_factory):
    """The URL of an nginx in front of the yard."""
    folder = tmp_path_factory.mktemp("nginx")
    folder.chmod(0o755)
    for above in folder.parents[:2]:
        above.chmod(above.stat().st_mode | 0o111)  # its workers are another user
    ports = free_ports(2)
    conf = pathlib.Path(folder, "nginx.conf")
    conf.write_text(configuration((ROOT / "docker/nginx.conf").read_text(), yard, ports, folder))
    with subprocess.Popen(["/usr/sbin/nginx", "-e", "stderr", "-c", conf],
                          stderr=subprocess.PIPE) as process:
        def answers():
            assert process.poll() is None, process.stderr.read()
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", ports[0])) == 0
        wait_for(answers, "nginx listens")
        yield f"http://127.0.0.1:{ports[0]}"
        process.send_signal(signal.SIGTERM)


def test_a_job_through_nginx(client, front):
    through = Client(front, client.key)
    content = words(1 << 20)
    file = through.upload(content, "words.txt")
    assert file["bytes"] == len(content)
    job = through.post("/v1/jobs", gpt2_job(file["id"], 100000, every=50))
    kinds = []
    for event in through.events(job["id"]):
        kinds.append(event["event"])
        if event["event"] == "step" and kinds.count("step") == 2:  # they come while it trains
            assert client.get(f"/v1/jobs/{job['id']}")["status"] == "running"
            through.post(f"/v1/jobs/{job['id']}/cancel", {})
    assert kinds[-1] == "job.cancelled"
    assert done(client, job)["status"] == "cancelled"


@pytest.mark.parametrize("head", [
    b"GET /livez HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    b"GET /livez HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
    b"GET /livez HTTP/1.1\r\n\r\n",
])
def test_malformed_framing_stops_at_nginx(front, head):
    address = front.removeprefix("http://").split(":")
    with socket.create_connection((address[0], int(address[1])), 10) as plug:
        plug.sendall(head)
        assert plug.recv(4096).startswith(b"HTTP/1.1 400")


def test_metrics_stay_inside(front, yard):
    assert Client(front, yard.env["TRAINYARD_OPERATOR_KEY"]).raw("GET", "/metrics")[0] == 404
