# SPDX-License-Identifier: Apache-2.0
"""The HTTP side over time: event streams, long polls, overload, a lost database, stopping."""
import json
import os
import socket
import threading
import time

import pytest

from http_raw_server import (  # pylint: disable=unused-import
    SLOWER, Reply, Server, database, make_tenant, server)

HEAD = b"GET /livez HTTP/1.1\r\nHost: yard\r\n"


def make_job(database, tenant, events=0):
    """A running job's row with so many events."""
    job = "job_0" + os.urandom(13).hex().upper()[:25]
    database.sql(
        "insert into jobs (id, tenant_id, status, spec, plan, residency, instance_type,"
        f" device_count, seq) values ('{job}', '{tenant}', 'running', '{{}}', '{{}}', '{{any}}',"
        f" 'cpu-dev', 1, {events});"
        " insert into job_events (job_id, seq, type, data)"
        f" select '{job}', n, 'step', '{{}}' from generate_series(1, {events}) n")
    return job


def add_event(database, job, kind="step"):
    database.sql(f"with j as (update jobs set seq = seq + 1 where id = '{job}' returning seq)"
                 " insert into job_events (job_id, seq, type)"
                 f" select '{job}', seq, '{kind}' from j")


# ------------------------------------------------------------------ streams and long polls

def open_stream(server, job, key=None, **headers):
    s = server.connect(timeout_s=30)
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    s.sendall(f"GET /v1/jobs/{job}/events HTTP/1.1\r\nHost: y\r\nAccept: text/event-stream\r\n"
              f"Authorization: Bearer {key or server.key}\r\n{more}\r\n".encode())
    return s, Reply(s)


def next_events(stream):
    """The next chunk that is not a heartbeat."""
    while (part := stream.chunk()).startswith(b":"):
        pass
    return part


def test_a_stream_follows_another_servers_writes(server, database):
    job = make_job(database, server.tenant, 3)
    sock, stream = open_stream(server, job)
    with sock:
        assert stream.status == 200
        assert stream.headers["content-type"] == "text/event-stream"
        text = b""
        while text.count(b"\n\n") < 3:
            text += stream.chunk()
        assert [line for line in text.splitlines() if line.startswith(b"id:")] == [
            b"id: 1", b"id: 2", b"id: 3"]
        started = time.monotonic()
        add_event(database, job)
        assert b"id: 4\n" in next_events(stream)
        assert time.monotonic() - started < 2 * SLOWER
        add_event(database, job, "job.succeeded")
        assert b"id: 5\n" in next_events(stream)
        assert stream.chunk() == b""
    sock, stream = open_stream(server, job, Last_Event_ID="3")
    with sock:
        assert stream.chunk().startswith(b"id: 4\n")


def test_a_long_history_arrives_whole(server, database):
    job = make_job(database, server.tenant, 20000)
    add_event(database, job, "job.failed")
    sock, stream = open_stream(server, job)
    with sock:
        text = b""
        while part := stream.chunk():
            text += part
        ids = [int(line[4:]) for line in text.splitlines() if line.startswith(b"id: ")]
        assert ids == list(range(1, 20002))


def test_many_streams_hinder_nobody(server, database):
    """Heartbeats come, a stream that is left is noticed, and the service stays quick."""
    job = make_job(database, server.tenant, 1)
    before = gauge(server, "streams")
    streams = [open_stream(server, job) for _ in range(300)]
    try:
        for _, stream in streams:
            assert b"id: 1\n" in stream.chunk()
        assert gauge(server, "streams") == before + 300
        started = time.monotonic()
        for _ in range(50):
            assert server.request("GET", f"/v1/jobs/{job}/events", key=server.key).status == 200
        assert time.monotonic() - started < 10 * SLOWER
        for sock, _ in streams[200:]:
            sock.shutdown(socket.SHUT_RDWR)
        add_event(database, job)
        for _, stream in streams[:200]:
            assert b"id: 2\n" in next_events(stream)
        sock, stream = streams[0]
        sock.settimeout(25 * SLOWER)
        assert stream.chunk().startswith(b":")
        end = time.monotonic() + 20 * SLOWER
        while gauge(server, "streams") > before + 200:
            assert time.monotonic() < end
            time.sleep(0.2)
    finally:
        for sock, _ in streams:
            sock.close()


def gauge(server, name):
    text = server.request("GET", "/metrics", key=server.database.operator).body.decode()
    line = next(line for line in text.splitlines() if line.startswith(f"trainyard_http_{name} "))
    return int(line.split()[1])


def test_streams_are_bounded(database):
    few = Server(database, streams_max=2)
    try:
        tenant, key = make_tenant(few)
        job = make_job(database, tenant)
        open_streams = [open_stream(few, job, key) for _ in range(2)]
        refused, reply = open_stream(few, job, key)
        assert (reply.status, reply.code) == (503, "overloaded")
        assert int(reply.headers["retry-after"]) > 0
        for sock in [refused, *(sock for sock, _ in open_streams)]:
            sock.close()
    finally:
        assert few.stop()[0] == 0


def agent(server, database):
    key = database.run_program("create-key", "--role=agent", "--name=a", "--region=us-east")
    registered = server.request("POST", "/agent/v1/register", json.dumps({
        "name": "a", "boot_id": "b", "engine_build": "0", "region": "us-east",
        "instance_type": "cpu-dev", "devices": [
            {"index": 0, "name": "cpu0", "memory_bytes": 1 << 31}], "rates": {}}).encode(),
        key, server.agent_port, Content_Type="application/json")
    assert registered.status == 200, registered.body
    return key, registered.json["agent_id"]


def poll(server, key, agent_id, version, wait_ms):
    body = json.dumps({"agent_id": agent_id, "version": version, "wait_ms": wait_ms}).encode()
    return server.request("POST", "/agent/v1/poll", body, key, server.agent_port,
                          Content_Type="application/json")


def test_long_polls_wake_and_end(server, database):
    key, agent_id = agent(server, database)
    version = poll(server, key, agent_id, -1, 0).json["version"]
    started = time.monotonic()
    assert poll(server, key, agent_id, version, 700).json["version"] == version
    assert 0.6 < time.monotonic() - started < 5 * SLOWER
    answers = []
    waiting = threading.Thread(
        target=lambda: answers.append(poll(server, key, agent_id, version, 20000)))
    started = time.monotonic()
    waiting.start()
    while gauge(server, "waiting_polls") == 0:
        assert time.monotonic() - started < 10 * SLOWER
    database.sql(f"update agents set version = version + 1 where id = '{agent_id}'")
    waiting.join(20)
    assert answers and answers[0].json["version"] == version + 1
    assert time.monotonic() - started < 8 * SLOWER


# ------------------------------------------------------------------ trouble and stopping

def test_without_database(database):
    lone = Server(database)
    try:
        _, key = make_tenant(lone)
        assert lone.request("GET", "/readyz").status == 200
        database.stop()
        for path, auth in (("/readyz", None), ("/v1/jobs", key), ("/v1/jobs", database.operator)):
            started = time.monotonic()
            refused = lone.request("GET", path, key=auth, X_Tenant_Id="tenant_1")
            assert (refused.status, refused.code) == (503, "database_unavailable")
            assert int(refused.headers["retry-after"]) > 0
            assert time.monotonic() - started < 3 * SLOWER
            assert lone.request("GET", "/livez").status == 200
        database.restart()
        end = time.monotonic() + 10 * SLOWER
        while lone.request("GET", "/v1/jobs", key=key).status != 200:
            assert time.monotonic() < end
            time.sleep(0.1)
    finally:
        assert lone.stop()[0] == 0


def test_rate_limit(database):
    slow = Server(database, rate_per_s=1, rate_burst=5)
    try:
        _, key = make_tenant(slow)
        _, other = make_tenant(slow)
        replies = [slow.request("GET", "/v1/jobs", key=key) for _ in range(8)]
        assert [r.status for r in replies[:5]] == [200] * 5
        assert replies[7].code == "rate_limited"
        assert int(replies[7].headers["retry-after"]) >= 1
        assert replies[7].headers["ratelimit-remaining"] == "0"
        assert slow.request("GET", "/v1/jobs", key=other).status == 200
        assert slow.request("GET", "/livez").status == 200
    finally:
        assert slow.stop()[0] == 0


def test_overload_is_refused_quickly(database):
    """One worker, held by a lock in the database: the queue fills, the rest is refused."""
    small = Server(database, workers=1, queue_max=4, db_lock_timeout_ms=4000,
                   db_statement_timeout_ms=5000)
    try:
        _, key = make_tenant(small)
        assert small.request("GET", "/v1/jobs", key=key).status == 200
        holder = threading.Thread(target=database.sql, args=(
            "begin; lock table jobs in access exclusive mode; select pg_sleep(2); commit",))
        holder.start()
        end = time.monotonic() + 5
        while not database.sql("select 1 from pg_locks where mode = 'AccessExclusiveLock'"
                               " and relation = 'jobs'::regclass"):
            assert time.monotonic() < end
        socks = [small.connect() for _ in range(20)]
        for s in socks:
            s.sendall(f"GET /v1/jobs HTTP/1.1\r\nHost: y\r\nAuthorization: Bearer {key}\r\n\r\n"
                      .encode())
        started = time.monotonic()
        assert small.request("GET", "/livez").status == 200
        assert time.monotonic() - started < 1 * SLOWER
        statuses = sorted(Reply(s).status for s in socks)
        assert statuses.count(503) >= 14 and statuses.count(200) >= 4, statuses
        for s in socks:
            s.close()
        holder.join()
    finally:
        assert small.stop()[0] == 0


def test_a_frozen_database_is_given_up_in_time(database):
    """The first request learns it from its statement, later ones from a connection that nobody
    answers; nothing needs a restart."""
    one = Server(database)
    try:
        _, key = make_tenant(one)
        assert one.request("GET", "/v1/jobs", key=key).status == 200
        took_s = []
        with database.frozen():
            for path in ("/v1/jobs", "/v1/files", "/readyz", "/v1/jobs"):
                started = time.monotonic()
                reply = one.request("GET", path, key=key)
                took_s.append(time.monotonic() - started)
                assert reply.status == 503 and int(reply.headers["retry-after"]) >= 1
            started = time.monotonic()
            assert one.request("GET", "/livez").status == 200
            assert time.monotonic() - started < 1 * SLOWER
        assert max(took_s) < 2.2 * SLOWER, took_s
        end = time.monotonic() + 5 * SLOWER
        while one.request("GET", "/v1/jobs", key=key).status != 200:
            assert time.monotonic() < end
            time.sleep(0.05)
    finally:
        assert one.stop()[0] == 0


def test_stopping_ends_streams_polls_and_requests(database):
    one = Server(database)
    tenant, key = make_tenant(one)
    job = make_job(database, tenant, 1)
    agent_key, agent_id = agent(one, database)
    version = poll(one, agent_key, agent_id, -1, 0).json["version"]
    streams = [open_stream(one, job, key) for _ in range(20)]
    for _, stream in streams:
        stream.chunk()
    answers = []
    polls = [threading.Thread(
        target=lambda: answers.append(poll(one, agent_key, agent_id, version, 20000)))
        for _ in range(5)]
    for thread in polls:
        thread.start()
    end = time.monotonic() + 10 * SLOWER
    while gauge(one, "waiting_polls") < 5:
        assert time.monotonic() < end
    idle = one.connect()
    half = one.connect()
    half.sendall(HEAD)
    code, took_s = one.stop()
    assert code == 0 and took_s < 10 * SLOWER
    for thread in polls:
        thread.join(10)
    assert [a.status for a in answers] == [200] * 5
    for sock, stream in streams:
        assert stream.chunk() == b""
        sock.close()
    idle.close()
    half.close()
    with pytest.raises(OSError):
        one.connect()


def test_stopping_under_load_loses_no_answer(database):
    one = Server(database)
    _, key = make_tenant(one)
    broken, served = [], []
    stop = threading.Event()

    def load():
        while not stop.is_set():
            try:
                sock = one.connect()
            except OSError:
                return  # it does not listen any more: a proxy asks another server
            with sock:
                sock.sendall(b"GET /v1/jobs HTTP/1.1\r\nHost: y\r\nConnection: close\r\n"
                             + f"Authorization: Bearer {key}\r\n\r\n".encode())
                try:
                    served.append(Reply(sock).status)
                except (AssertionError, OSError) as error:
                    broken.append(error)

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 20 * SLOWER
    while len(served) < 200:
        assert time.monotonic() < end
        time.sleep(0.01)
    code, _ = one.stop()
    stop.set()
    for thread in threads:
        thread.join()
    assert code == 0
    assert set(served) == {200}
    # Connections that the kernel took and nobody accepted are reset: at most one a thread.
    assert len(broken) <= len(threads), broken
