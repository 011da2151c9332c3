# SPDX-License-Identifier: Apache-2.0
"""The HTTP side byte by byte: framing, limits, deadlines, uploads, streams, overload, stopping."""
import contextlib
import hashlib
import json
import os
import socket
import threading
import time

import pytest

from http_raw_server import SLOWER, Database, Reply, Server, closed

HEAD = b"GET /livez HTTP/1.1\r\nHost: yard\r\n"
POST = b"POST /v1/jobs HTTP/1.1\r\nHost: yard\r\n"


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
                 f" insert into job_events (job_id, seq, type) select '{job}', seq, '{kind}' from j")


# ------------------------------------------------------------------ framing

GOOD = {
    "plain": HEAD,
    "blanks around values": b"GET /livez HTTP/1.1\r\nHost:yard \t\r\nX: \t a b \t\r\nY:\r\nZ:  \r\n",
    "empty line first": b"\r\n" + HEAD,
    "a query": b"GET /livez?a=1&b HTTP/1.1\r\nHost: yard\r\n",
    "cookies": HEAD + b"Cookie: a=b; c=d\r\nX: 1\r\n",
    "bytes above 127": HEAD + b"X: \xc3\xa4\r\n",
    "http 1.0": b"GET /livez HTTP/1.0\r\n",
}

BAD = {
    "no host": b"GET /livez HTTP/1.1\r\n",
    "two hosts": HEAD + b"Host: yard\r\n",
    "host with a path": b"GET /livez HTTP/1.1\r\nHost: a/b\r\n",
    "two lengths": POST + b"Content-Length: 3\r\nContent-Length: 4\r\n",
    "two equal lengths": POST + b"Content-Length: 3\r\nContent-Length: 3\r\n",
    "a list of lengths": POST + b"Content-Length: 3, 3\r\n",
    "length with a sign": POST + b"Content-Length: +3\r\n",
    "length in hex": POST + b"Content-Length: 0x3\r\n",
    "length and chunks": POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
    "chunks and length": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
    "unknown coding": POST + b"Transfer-Encoding: gzip\r\n",
    "two codings": POST + b"Transfer-Encoding: gzip, chunked\r\n",
    "coding twice": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
    "nearly chunked": POST + b"Transfer-Encoding: xchunked\r\n",
    "two credentials": HEAD + b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\n",
    "nul in the target": b"GET /livez\0x HTTP/1.1\r\nHost: yard\r\n",
    "escaped nul": b"GET /livez%00 HTTP/1.1\r\nHost: yard\r\n",
    "escaped line end": b"GET /livez%0d%0aX:y HTTP/1.1\r\nHost: yard\r\n",
    "control byte in the target": b"GET /livez\x01 HTTP/1.1\r\nHost: yard\r\n",
    "nul in a value": HEAD + b"X: a\0b\r\n",
    "nul in a name": HEAD + b"X\0Y: a\r\n",
    "folded line": HEAD + b"X: a\r\n b\r\n",
    "bare lf": b"GET /livez HTTP/1.1\nHost: yard\n",
    "one bare lf": b"GET /livez HTTP/1.1\r\nHost: yard\nX: b\r\n",
    "bare cr": b"GET /livez HTTP/1.1\r\nHost: yard\rX: b\r\n",
    "blank before the colon": HEAD + b"X : a\r\n",
    "blank before the name": b"GET /livez HTTP/1.1\r\n Host: yard\r\n",
    "no colon": HEAD + b"XYZ\r\n",
    "two blanks": b"GET  /livez HTTP/1.1\r\nHost: yard\r\n",
    "absolute target": b"GET http://yard/livez HTTP/1.1\r\nHost: yard\r\n",
    "unknown expectation": POST + b"Expect: everything\r\nContent-Length: 3\r\n",
    "options star": b"OPTIONS * HTTP/1.1\r\nHost: yard\r\n",
}


@pytest.mark.parametrize("name", GOOD)
def test_good_framing(server, name):
    assert server.ask(GOOD[name] + b"\r\n").status == 200


@pytest.mark.parametrize("name", BAD)
def test_bad_framing_is_refused_and_smuggles_nothing(server, name):
    """What follows a malformed head must not be taken for a second request."""
    with server.connect() as s:
        s.sendall(BAD[name] + b"\r\nabc" + HEAD + b"\r\n")
        assert Reply(s).status == 400
    kept = {"escaped nul", "escaped line end", "control byte in the target", "absolute target",
            "options star"}  # their framing is sound, only their target is not
    if name not in kept:
        with server.connect() as s:
            s.sendall(BAD[name] + b"\r\n")
            assert Reply(s).status == 400
            assert closed(s)


def test_pipelining_and_keeping_alive(server):
    with server.connect() as s:
        s.sendall((HEAD + b"\r\n") * 3 + b"GET /nope HTTP/1.1\r\nHost: yard\r\n\r\n" + HEAD + b"\r\n")
        stream = s.makefile("rb")
        statuses = []
        for _ in range(5):
            statuses.append(int(stream.readline().split()[1]))
            length = 0
            while (line := stream.readline()) != b"\r\n":
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split()[1])
            stream.read(length)
        assert statuses == [200, 200, 200, 404, 200]


def test_header_limits(server):
    many = HEAD + b"".join(b"X%d: y\r\n" % i for i in range(100)) + b"\r\n"
    assert server.ask(many).status == 431
    assert server.ask(HEAD + b"X: " + b"y" * 20000 + b"\r\n\r\n").status == 431
    assert server.ask(HEAD + b"X: " + b"y" * 200000 + b"\r\n\r\n").status == 431
    assert server.ask(b"GET /" + b"a" * 8000 + b" HTTP/1.1\r\nHost: yard\r\n\r\n").status == 431


# ------------------------------------------------------------------ before the body

def test_routes(server):
    assert server.request("GET", "/nope").code == "not_found"
    assert server.request("GET", "/v1%2fjobs").status == 404
    refused = server.request("DELETE", "/livez")
    assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD")
    assert server.request("GET", "/openapi.json").json["openapi"].startswith("3.1")
    with server.connect() as s:
        s.sendall(b"HEAD /livez HTTP/1.1\r\nHost: yard\r\n\r\n")
        head = Reply(s, "HEAD")
        assert head.status == 200 and int(head.headers["content-length"]) > 0


def test_credentials(server):
    wrong = server.key[:-1] + ("0" if server.key[-1] != "0" else "1")
    unknown = "ty_6enm2pa8d66qjb6phbz2phac1z3988qq3drb2de"
    for key in (None, "x", wrong, unknown, server.key + "0", server.key.upper()):
        refused = server.request("GET", "/v1/jobs", key=key)
        assert (refused.status, refused.code) == (401, "unauthenticated")
        assert refused.headers["www-authenticate"].startswith("Bearer")
        assert refused.headers["x-request-id"] in refused.json["instance"]
    basic = server.ask(b"GET /v1/jobs HTTP/1.1\r\nHost: y\r\nAuthorization: Basic YTpi\r\n\r\n")
    assert basic.status == 401
    assert server.request("GET", "/v1/jobs", key=server.key).status == 200
    assert server.request("GET", "/v1/tenants", key=server.key).code == "forbidden"
    assert server.request("GET", "/v1/jobs", key=server.operator).code == "missing_field"
    for named in (f"/v1/jobs?tenant_id={server.tenant}",):
        assert server.request("GET", named, key=server.operator).status == 200
    assert server.request("GET", "/v1/jobs", key=server.operator,
                          X_Tenant_Id=server.tenant).status == 200
    assert server.request("POST", "/agent/v1/poll", b"{}", server.key, server.agent_port,
                          Content_Type="application/json").status == 403
    assert server.request("GET", "/metrics").status == 401
    assert b"trainyard_http_requests_total" in server.request(
        "GET", "/metrics", key=server.operator).body


def test_a_revoked_key_ends_within_its_time(server):
    _, key = make_tenant(server)
    assert server.request("GET", "/v1/jobs", key=key).status == 200
    server.database.sql("update api_keys set revoked_at = now() where secret_hash ="
                        f" sha256('{key}'::bytea)")
    end = time.monotonic() + 10 * SLOWER
    while server.request("GET", "/v1/jobs", key=key).status != 401:
        assert time.monotonic() < end
        time.sleep(0.2)


def test_the_body_is_refused_before_it_is_read(server):
    """No 100 Continue, no megabytes: the head alone decides."""
    expect = b"Expect: 100-continue\r\nContent-Type: application/json\r\n"
    for head, status in (
            (POST + expect + b"Content-Length: 3\r\n", 401),
            (POST + expect + b"Content-Length: 300000\r\n", 413),
            (b"POST /nope HTTP/1.1\r\nHost: y\r\n" + expect + b"Content-Length: 3\r\n", 404),
            (POST + b"Expect: 100-continue\r\nContent-Length: 3\r\n", 415)):
        assert server.ask(head + b"\r\n").status == status
    auth = f"Authorization: Bearer {server.key}\r\n".encode()
    with server.connect() as s:
        s.sendall(POST + auth + expect + b"Content-Length: 2\r\n\r\n")
        assert s.recv(100).startswith(b"HTTP/1.1 100")
        s.sendall(b"{}")
        assert Reply(s).status == 400


def test_a_credential_that_must_be_asked_about(server):
    """The first use of a key goes through the database, before the body all the same."""
    _, key = make_tenant(server)
    _, gone = make_tenant(server)
    server.database.sql(f"delete from api_keys where secret_hash = sha256('{gone}'::bytea)")
    head = POST + b"Content-Type: application/json\r\nExpect: 100-continue\r\n"
    with server.connect() as s:
        s.sendall(head + f"Authorization: Bearer {key}\r\nContent-Length: 2\r\n\r\n".encode())
        assert s.recv(100).startswith(b"HTTP/1.1 100")
        s.sendall(b"{}")
        assert Reply(s).code == "missing_field"
    refused = server.ask(
        head + f"Authorization: Bearer {gone}\r\nContent-Length: 200000\r\n\r\n".encode())
    assert (refused.status, refused.code) == (401, "unauthenticated")


def test_a_small_refused_body_keeps_the_connection(server):
    with server.connect() as s:
        s.sendall(POST + b"Content-Type: application/json\r\nContent-Length: 3\r\n\r\nabc" + HEAD
                  + b"\r\n")
        first = s.recv(65536)
        assert first.startswith(b"HTTP/1.1 401")
        while b"HTTP/1.1 200" not in first:
            more = s.recv(65536)
            assert more
            first += more


def test_json_limits(server):
    def post(body, kind="application/json"):
        return server.request("POST", "/v1/jobs", body, server.key, Content_Type=kind)

    assert post(b"{" * 100).code == "invalid_json"
    assert post(b'{"a":1,"a":2}').code == "invalid_json"
    assert post(b"[" * 200 + b"]" * 200).code == "invalid_json"
    assert post(b'{"x":1}').status == 400
    assert post(b"{}", "text/plain").code == "unsupported_media_type"
    assert post(b"{}", "application/jsonx").code == "unsupported_media_type"
    assert post(b" " * 262145).code == "too_large"
    chunked = (POST + f"Authorization: Bearer {server.key}\r\n".encode()
               + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
    with server.connect() as s:
        s.sendall(chunked + b"40000\r\n" + b" " * 0x40000 + b"\r\n1\r\n \r\n")
        assert Reply(s).code == "too_large"
    with server.connect() as s:
        s.sendall(chunked + b"2\r\n{}\r\n0\r\n\r\n")
        assert Reply(s).status == 400


# ------------------------------------------------------------------ uploads and downloads

def form(content, first="file"):
    file = (b'--BB\r\nContent-Disposition: form-data; name="file"; filename="d.bin"\r\n'
            b"Content-Type: application/octet-stream\r\n\r\n" + content + b"\r\n")
    purpose = b'--BB\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n'
    return (file + purpose if first == "file" else purpose + file) + b"--BB--\r\n"


def chunks(data, size):
    out = b"".join(b"%x\r\n" % len(data[at:at + size]) + data[at:at + size] + b"\r\n"
                   for at in range(0, len(data), size))
    return out + b"0\r\n\r\n"


@pytest.mark.parametrize("first", ["file", "purpose"])
def test_upload_in_chunks_and_download(server, first):
    content = os.urandom(1 << 20) + b"\r\n--BB\r\n--B" + os.urandom(100)
    content = content.replace(b"\r\n--BB", b"\r\n--Bb")
    head = (f"POST /v1/files HTTP/1.1\r\nHost: y\r\nAuthorization: Bearer {server.key}\r\n"
            "Content-Type: multipart/form-data; boundary=BB\r\nTransfer-Encoding: chunked\r\n\r\n")
    made = server.ask(head.encode() + chunks(form(content, first), 7777))
    assert made.status in (200, 201), made.body
    assert made.json["bytes"] == len(content)
    path = f"/v1/files/{made.json['id']}/content"
    whole = server.request("GET", path, key=server.key)
    assert whole.body == content
    etag = whole.headers["etag"]
    assert etag == f'"{hashlib.sha256(content).hexdigest()}"'
    part = server.request("GET", path, key=server.key, Range="bytes=100-199")
    assert (part.status, part.body) == (206, content[100:200])
    assert part.headers["content-range"] == f"bytes 100-199/{len(content)}"
    tail = server.request("GET", path, key=server.key, Range="bytes=-5", If_Range=etag)
    assert (tail.status, tail.body) == (206, content[-5:])
    changed = server.request("GET", path, key=server.key, Range="bytes=-5", If_Range='"x"')
    assert changed.status == 200
    beyond = server.request("GET", path, key=server.key, Range=f"bytes={len(content)}-")
    assert (beyond.status, beyond.headers["content-range"]) == (416, f"bytes */{len(content)}")
    assert server.request("GET", path, key=server.key, If_None_Match=etag).status == 304


def test_bad_uploads(server):
    def post(body, kind="multipart/form-data; boundary=BB"):
        return server.request("POST", "/v1/files", body, server.key, Content_Type=kind)

    assert post(form(b"x"), "multipart/form-data").code == "invalid_request"
    assert post(form(b"x"), "application/json").code == "unsupported_media_type"
    assert post(form(b"x")[:-6]).code == "invalid_request"
    assert post(form(b"x") + b"epilogue").status in (200, 201)
    assert post(b"--BB--\r\n").status == 400
    no_length = (f"POST /v1/files HTTP/1.1\r\nHost: y\r\nAuthorization: Bearer {server.key}\r\n"
                 "Content-Type: multipart/form-data; boundary=BB\r\n\r\n")
    assert server.ask(no_length.encode()).code == "length_required"


def test_too_large_uploads_get_their_answer(server):
    """Also while the client still sends: it must read 413, not a reset."""
    head = (f"POST /v1/files HTTP/1.1\r\nHost: y\r\nAuthorization: Bearer {server.key}\r\n"
            "Content-Type: multipart/form-data; boundary=BB\r\n").encode()
    with server.connect() as s:
        s.sendall(head + b"Content-Length: 9000000\r\n\r\n")
        with contextlib.suppress(OSError):
            for _ in range(90):
                s.sendall(b"x" * 100000)
        assert Reply(s).code == "too_large"
    with server.connect() as s:
        s.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
        body = chunks(form(bytes(9000000)), 100000)
        with contextlib.suppress(OSError):
            for at in range(0, len(body), 100000):
                s.sendall(body[at:at + 100000])
        assert Reply(s).code == "too_large"
    temp = os.path.join(server.database.dir, "blobs", "tmp")
    end = time.monotonic() + 10 * SLOWER
    while os.listdir(temp):
        assert time.monotonic() < end, os.listdir(temp)
        time.sleep(0.05)


# ------------------------------------------------------------------ deadlines

@pytest.fixture(scope="module")
def strict(database):
    made = Server(database, headers_timeout_s=1, body_timeout_s=1, idle_timeout_s=30,
                  body_min_bytes_per_s=50000)
    made.tenant, made.key = make_tenant(made)
    yield made
    assert made.stop()[0] == 0


def drip(sock, text, pause_s=0.1):
    """Sends a byte at a time until the peer closes; seconds that took."""
    started = time.monotonic()
    sock.settimeout(0.001)
    for byte in text:
        try:
            sock.send(bytes([byte]))
            time.sleep(pause_s)
            if sock.recv(1000) == b"":
                break
        except TimeoutError:
            continue
        except OSError:
            break
    else:
        raise AssertionError("the drip was never ended")
    return time.monotonic() - started


def test_slow_headers_end(strict):
    with strict.connect() as s:
        assert drip(s, HEAD + b"X: " + b"y" * 200) < 5 * SLOWER
    with strict.connect() as s:  # and on a connection that was good once
        s.sendall(HEAD + b"\r\n")
        assert Reply(s).status == 200
        assert drip(s, HEAD + b"X: " + b"y" * 200) < 5 * SLOWER


def test_an_idle_connection_may_wait(strict):
    with strict.connect() as s:
        s.sendall(HEAD + b"\r\n")
        assert Reply(s).status == 200
        time.sleep(2.5)  # longer than headers_timeout_s: silence is not a slow request
        s.sendall(HEAD + b"\r\n")
        assert Reply(s).status == 200


def test_slow_bodies_end(strict):
    auth = f"Authorization: Bearer {strict.key}\r\n".encode()
    with strict.connect() as s:
        s.sendall(POST + auth + b"Content-Type: application/json\r\nContent-Length: 200\r\n\r\n")
        assert drip(s, b" " * 200) < 5 * SLOWER
    with strict.connect() as s:
        s.sendall(b"POST /v1/files HTTP/1.1\r\nHost: y\r\n" + auth
                  + b"Content-Type: multipart/form-data; boundary=BB\r\n"
                  b"Transfer-Encoding: chunked\r\n\r\n")
        assert drip(s, b"1\r\nx\r\n" * 100) < 6 * SLOWER


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
    """One worker, held by a lock in the database: the queue fills, the rest is told to come back."""
    small = Server(database, workers=1, queue_max=4, db_lock_timeout_ms=4000)
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
