# SPDX-License-Identifier: Apache-2.0
"""A small HTTP client of the yard's API: requests, uploads, downloads, event streams.

The demo and the integration tests use it; the standard library only. A Client may be used from
several threads: each request opens its own connection."""
import contextlib
import hashlib
import http.client
import json
import os
import urllib.parse
import uuid

CHUNK_BYTES = 1 << 16
TIMEOUT_S = 60


class ApiError(Exception):
    """An answer that is not 2xx, with the body's problem document."""

    def __init__(self, status, body):
        self.status = status
        self.body = body
        try:
            self.problem = json.loads(body)
        except ValueError:
            self.problem = {}
        super().__init__(f"{status}: {body[:2000].decode('utf-8', 'replace')}")

    @property
    def error(self):
        return self.problem.get("error") or {}


class Client:
    def __init__(self, url, key, timeout_s=TIMEOUT_S):
        parts = urllib.parse.urlsplit(url)
        self.host, self.port = parts.hostname, parts.port or 80
        self.key = key
        self.timeout_s = timeout_s

    def open(self, method, path, body=None, headers=None, timeout_s=None):
        """(connection, response) with the body unread; the caller closes the connection."""
        connection = http.client.HTTPConnection(self.host, self.port,
                                                timeout=timeout_s or self.timeout_s)
        try:
            send = {"Authorization": f"Bearer {self.key}"} if self.key else {}
            connection.request(method, path, body=body, headers={**send, **(headers or {})})
            return connection, connection.getresponse()
        except BaseException:
            connection.close()
            raise

    def raw(self, method, path, body=None, headers=None):
        """(status, headers, body) whatever the status."""
        connection, response = self.open(method, path, body, headers)
        with contextlib.closing(connection):
            return response.status, response.headers, response.read()

    def call(self, method, path, document=None, headers=None):
        """The JSON of the answer; ApiError when it is not 2xx."""
        body, send = None, dict(headers or {})
        if document is not None:
            body = document if isinstance(document, bytes) else json.dumps(document).encode()
            send.setdefault("Content-Type", "application/json")
        status, _, answer = self.raw(method, path, body, send)
        if not 200 <= status < 300:
            raise ApiError(status, answer)
        return json.loads(answer) if answer else None

    def get(self, path):
        return self.call("GET", path)

    def post(self, path, document, headers=None):
        return self.call("POST", path, document, headers)

    def pages(self, path, limit=100):
        """Every row of a list."""
        after = ""
        while True:
            mark = "&" if "?" in path else "?"
            page = self.get(f"{path}{mark}limit={limit}{after}")
            yield from page["data"]
            if not page.get("has_more"):
                return
            after = f"&after={page['last_id']}"

    def upload(self, content, filename, purpose="fine-tune"):
        """Uploads bytes, or the file at a path, as multipart/form-data, streamed."""
        boundary = uuid.uuid4().hex
        head = (f"--{boundary}\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\n"
                f"{purpose}\r\n--{boundary}\r\nContent-Disposition: form-data; name=\"file\"; "
                f"filename=\"{filename}\"\r\nContent-Type: application/octet-stream\r\n\r\n"
                ).encode()
        tail = f"\r\n--{boundary}--\r\n".encode()
        size = len(content) if isinstance(content, bytes) else os.path.getsize(content)

        def parts():
            yield head
            if isinstance(content, bytes):
                yield content
            else:
                with open(content, "rb") as file:
                    while chunk := file.read(CHUNK_BYTES):
                        yield chunk
            yield tail

        connection, response = self.open("POST", "/v1/files", parts(), {
            "Content-Type": f"multipart/form-data; boundary={boundary}",
            "Content-Length": str(len(head) + size + len(tail))})
        with contextlib.closing(connection):
            body = response.read()
        if response.status not in (200, 201):
            raise ApiError(response.status, body)
        return json.loads(body)

    def download(self, path, target=None):
        """Streams a body to the file at target (or nowhere); (bytes, SHA-256 in hex)."""
        digest, size = hashlib.sha256(), 0
        connection, response = self.open("GET", path)
        with contextlib.closing(connection), contextlib.ExitStack() as stack:
            if response.status != 200:
                raise ApiError(response.status, response.read())
            out = stack.enter_context(open(target, "wb")) if target else None
            while chunk := response.read(CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
                if out:
                    out.write(chunk)
        return size, digest.hexdigest()

    def events(self, job_id, last_event_id=None, timeout_s=60):
        """One connection's server-sent events: dicts with id, event and data (parsed). Ends with
        the stream; a break of the connection raises OSError or http.client.HTTPException."""
        headers = {"Accept": "text/event-stream"}
        if last_event_id is not None:
            headers["Last-Event-ID"] = str(last_event_id)
        connection, response = self.open("GET", f"/v1/jobs/{job_id}/events", None, headers,
                                         timeout_s)
        with contextlib.closing(connection):
            if response.status != 200:
                raise ApiError(response.status, response.read())
            event = {}
            for line in response:
                line = line.decode("utf-8").rstrip("\r\n")
                if not line and event:
                    yield {"id": event.get("id"), "event": event.get("event", "message"),
                           "data": json.loads(event["data"]) if "data" in event else None}
                    event = {}
                elif line and not line.startswith(":"):
                    name, _, value = line.partition(":")
                    event[name] = value.removeprefix(" ")


TERMINAL = ("job.succeeded", "job.failed", "job.cancelled")


def follow(client, job_id, deadline_s, clock):
    """Events of a job up to its terminal one, over as many connections as that takes."""
    end = clock() + deadline_s
    last = None
    while clock() < end:
        try:
            for event in client.events(job_id, last, timeout_s=30):
                last = event["id"] or last
                yield event
                if event["event"] in TERMINAL:
                    return
        except (OSError, http.client.HTTPException):
            continue  # the server restarted, or the stream was silent; Last-Event-ID resumes
        except ApiError as error:
            if error.status < 500 and error.status != 429:
                raise
    raise TimeoutError(f"{job_id} is not done after {deadline_s} s")
