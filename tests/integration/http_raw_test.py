# SPDX-License-Identifier: Apache-2.0
"""The HTTP side byte by byte: framing, credentials, limits, uploads, deadlines."""
import base64
import contextlib
import hashlib
import hmac
import json
import os
import pathlib
import subprocess
import time

import pytest

from http_raw_server import (  # pylint: disable=unused-import
    SLOWER, Reply, Server, closed, database, make_tenant, server)

HEAD = b"GET /livez HTTP/1.1\r\nHost: yard\r\n"
POST = b"POST /v1/jobs HTTP/1.1\r\nHost: yard\r\n"


# ------------------------------------------------------------------ framing

GOOD = {
    "plain": HEAD,
    "blanks around values": b"GET /livez HTTP/1.1\r\nHost:yard \t\r\n"
                            b"X: \t a b \t\r\nY:\r\nZ:  \r\n",
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
        s.sendall((HEAD + b"\r\n") * 3 + b"GET /nope HTTP/1.1\r\nHost: yard\r\n\r\n"
                  + HEAD + b"\r\n")
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


def signed(claims, key, header):
    def b64(data):
        return base64.urlsafe_b64encode(data).rstrip(b"=")

    text = b64(json.dumps(header).encode()) + b"." + b64(json.dumps(claims).encode())
    if header["alg"] == "HS256":
        signature = hmac.new(pathlib.Path(key).read_bytes(), text, hashlib.sha256).digest()
    else:
        signature = subprocess.run(["openssl", "dgst", "-sha256", "-sign", key], input=text,
                                   capture_output=True, check=True).stdout
    return (text + b"." + b64(signature)).decode()


def test_tokens(database, tmp_path):
    private, public = str(tmp_path / "key"), str(tmp_path / "key.pub")
    subprocess.run(["openssl", "genrsa", "-out", private, "2048"], check=True, capture_output=True)
    subprocess.run(["openssl", "rsa", "-in", private, "-pubout", "-out", public], check=True,
                   capture_output=True)
    one = Server(database, jwt_key_file=public, jwt_issuer="https://idp", jwt_audience="yard",
                 jwt_key_id="k1")
    try:
        tenant, _ = make_tenant(one)
        claims = {"iss": "https://idp", "aud": "yard", "sub": "me", "role": "member",
                  "tenant_id": tenant, "exp": int(time.time()) + 600}
        header = {"alg": "RS256", "kid": "k1"}

        def status(path, change=None, key=private, head=None):
            token = signed({**claims, **(change or {})}, key, head or header)
            return one.request("GET", path, key=token).status

        assert status("/v1/jobs") == 200
        assert status("/v1/tenants") == 403
        assert status("/v1/tenants", {"role": "operator", "tenant_id": None}) == 200
        assert status("/v1/jobs", {"exp": int(time.time()) - 61}) == 401
        assert status("/v1/jobs", key=public, head={"alg": "HS256", "kid": "k1"}) == 401
    finally:
        assert one.stop()[0] == 0


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


def test_slow_readers_end(strict):
    """A reply that is not taken does not hold its file and its connection for ever."""
    content = form(bytes(24 << 20))
    head = (f"POST /v1/files HTTP/1.1\r\nHost: y\r\nAuthorization: Bearer {strict.key}\r\n"
            "Content-Type: multipart/form-data; boundary=BB\r\n"
            f"Content-Length: {len(content)}\r\n\r\n")
    made = strict.ask(head.encode() + content)
    impatient = Server(strict.database, body_timeout_s=1, body_min_bytes_per_s=20000000)
    try:
        with impatient.connect(timeout_s=30) as s:
            s.sendall(f"GET /v1/files/{made.json['id']}/content HTTP/1.1\r\nHost: y\r\n"
                      f"Authorization: Bearer {strict.key}\r\n\r\n".encode())
            line = None
            end = time.monotonic() + 30 * SLOWER
            while not line:  # the log says when the server gave up
                assert time.monotonic() < end
                line = next((e for e in impatient.events() if e.get("route") == "files_content"),
                            None)
                time.sleep(0.05)
        assert line["complete"] is False
    finally:
        assert impatient.stop()[0] == 0
