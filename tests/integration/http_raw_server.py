# SPDX-License-Identifier: Apache-2.0
"""One trainyard-server on a throwaway PostgreSQL, without scheduler, agents or proxy: for the tests
that talk to it byte by byte, starve it, or stop it."""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("TRAINYARD_BUILD") or ROOT / "build")
CLUSTER = ROOT / "tests/support/pg_cluster.sh"
SLOWER = 4 if os.environ.get("TRAINYARD_SANITIZED") else 1
PROGRAM = BUILD / "server/trainyard-server"


class Database:
    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="trainyard-http-", dir="/tmp")
        self._cluster("start")
        self.url = self._cluster("url").strip()
        self.run_program("migrate")

    def _cluster(self, action, *more):
        done = subprocess.run([CLUSTER, action, self.dir, *more], text=True, capture_output=True,
                              check=True, stdin=subprocess.DEVNULL, timeout=60 * SLOWER)
        return done.stdout

    def stop(self):
        self._cluster("stop", "immediate")

    def restart(self):
        self._cluster("restart", "immediate")

    @contextlib.contextmanager
    def frozen(self):
        """No process of the cluster runs: the kernel takes connections, nothing answers."""
        main = pathlib.Path(self.dir, "data/postmaster.pid").read_text(encoding="utf-8").split()[0]
        children = pathlib.Path(f"/proc/{main}/task/{main}/children")
        signalled = [int(main)]
        os.kill(signalled[0], signal.SIGSTOP)
        try:
            for child in map(int, children.read_text(encoding="ascii").split()):
                os.kill(child, signal.SIGSTOP)
                signalled.append(child)
            yield
        finally:
            for process in signalled:
                os.kill(process, signal.SIGCONT)

    def remove(self):
        with contextlib.suppress(subprocess.CalledProcessError):
            self._cluster("stop", "immediate")
        shutil.rmtree(self.dir, ignore_errors=True)

    def environment(self):
        return {**os.environ, "TRAINYARD_DB_URL": self.url,
                "TRAINYARD_DATA_DIR": self.dir + "/blobs",
                "TRAINYARD_MIGRATIONS_DIR": str(ROOT / "migrations")}

    def run_program(self, *arguments):
        return subprocess.run([PROGRAM, *arguments], text=True, capture_output=True, check=True,
                              stdin=subprocess.DEVNULL, timeout=60 * SLOWER, cwd="/",
                              env=self.environment()).stdout.strip()

    def sql(self, statement):
        done = subprocess.run(["psql", "-X", "-At", "-v", "ON_ERROR_STOP=1", "-c", statement,
                               self.url], text=True, capture_output=True, check=True,
                              stdin=subprocess.DEVNULL, timeout=60)
        return done.stdout.strip()


class Server:
    """Its ports are the kernel's choice, read from its log."""

    def __init__(self, database, **settings):
        self.database = database
        self.log = pathlib.Path(tempfile.mkstemp(dir=database.dir, suffix=".log")[1])
        arguments = {"api_port": 0, "agent_port": 0, "scheduler": "false", "rate_per_s": 0,
                     **settings}
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [PROGRAM, *(f"--{key}={value}" for key, value in arguments.items())],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
                env=database.environment())
        ready = self.wait_log("server.ready")
        self.port, self.agent_port = ready["api_port"], ready["agent_port"]

    def events(self):
        for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                yield json.loads(line)

    def wait_log(self, event, deadline_s=30):
        end = time.monotonic() + deadline_s * SLOWER
        while time.monotonic() < end:
            for line in self.events():
                if line.get("event") == event:
                    return line
            assert self.process.poll() is None, self.log.read_text(encoding="utf-8")
            time.sleep(0.02)
        raise AssertionError(f"no {event} in {self.log.read_text(encoding='utf-8')}")

    def stop(self, deadline_s=30):
        """(exit code, seconds that it took)"""
        started = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(deadline_s * SLOWER)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        return code, time.monotonic() - started

    # -------------------------------------------------------------- bytes

    def connect(self, port=None, timeout_s=10):
        return socket.create_connection(("127.0.0.1", port or self.port),
                                        timeout=timeout_s * SLOWER)

    def ask(self, text, port=None):
        """Sends bytes on a new connection; the first reply."""
        with self.connect(port) as s:
            s.sendall(text)
            return Reply(s)

    def request(self, method, path, body=b"", key=None, port=None, **headers):
        head = f"{method} {path} HTTP/1.1\r\nHost: yard\r\n"
        if key:
            head += f"Authorization: Bearer {key}\r\n"
        if body or method == "POST":
            head += f"Content-Length: {len(body)}\r\n"
        for name, value in headers.items():
            head += f"{name.replace('_', '-')}: {value}\r\n"
        return self.ask(head.encode() + b"\r\n" + body, port)


class Reply:
    """Reads one reply from a socket: its head, and its body by Content-Length or chunks."""

    def __init__(self, sock, method="GET"):
        self.stream = sock.makefile("rb")
        self.status, self.headers = 0, {}
        line = self.stream.readline()
        assert line, "closed without a reply"
        self.status = int(line.split()[1])
        while (line := self.stream.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode().partition(":")
            self.headers[name.lower()] = value.strip()
        self.body = b""
        if "content-length" in self.headers and method != "HEAD":
            self.body = self.stream.read(int(self.headers["content-length"]))

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def code(self):
        return self.json["error"]["code"]

    def chunk(self):
        """The next chunk of a stream; b"" at its end."""
        size = int(self.stream.readline(), 16)
        data = self.stream.read(size)
        self.stream.readline()
        return data


def closed(sock):
    """True once the peer has closed, whatever came before."""
    try:
        while sock.recv(65536):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


# ------------------------------------------------------------------ fixtures

@pytest.fixture(scope="module")
def database():
    made = Database()
    made.operator = made.run_program("create-key", "--role=operator", "--name=op")
    yield made
    made.remove()


@pytest.fixture(scope="module")
def server(database):
    made = Server(database, upload_max_bytes=4 * 1024 * 1024, stream_heartbeat_s=1)
    made.operator = database.operator
    made.tenant, made.key = make_tenant(made)
    yield made
    code, _ = made.stop()
    assert code == 0


def make_tenant(server):
    created = server.request("POST", "/v1/tenants", b'{"name":"t","residency":["any"]}',
                             server.database.operator, Content_Type="application/json")
    assert created.status == 201, created.body
    tenant = created.json["id"]
    key = server.request("POST", f"/v1/tenants/{tenant}/api-keys", b'{"name":"k","role":"owner"}',
                         server.database.operator, Content_Type="application/json")
    return tenant, key.json["key"]
