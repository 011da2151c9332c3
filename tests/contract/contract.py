# SPDX-License-Identifier: Apache-2.0
"""openapi.yaml as a judge of replies: status, content type and body of an operation."""
import json
import re
import urllib.parse
import uuid

import jsonschema
import yaml

METHODS = ("get", "put", "post", "delete", "patch", "head")


class Description:
    def __init__(self, path):
        self.document = yaml.safe_load(path.read_text(encoding="utf-8"))
        self.operations = {}
        for pattern, item in self.document["paths"].items():
            for method in METHODS:
                if method in item:
                    self.operations[item[method]["operationId"]] = (method.upper(), pattern,
                                                                    item[method])
        self.seen = set()  # operations of which a good reply was judged

    def resolve(self, node):
        while "$ref" in node:
            target = self.document
            for part in node["$ref"].removeprefix("#/").split("/"):
                target = target[part]
            node = target
        return node

    def validate(self, schema, value):
        """Raises jsonschema.ValidationError."""
        jsonschema.Draft202012Validator({
            **schema, "components": self.document["components"]}).validate(value)

    def schema(self, name):
        return self.document["components"]["schemas"][name]

    def judge(self, operation_id, status, headers, body):
        """The parsed body (bytes where it is not JSON)."""
        responses = self.operations[operation_id][2]["responses"]
        answer = responses.get(str(status))
        if answer is None:
            assert status >= 400, f"{operation_id} answers {status}, which is not described"
            answer = responses["default"]
        content = self.resolve(answer)["content"]
        kind = (headers.get("Content-Type") or "").partition(";")[0].strip()
        assert kind in content, f"{operation_id} answers {status} with {kind!r}"
        assert headers.get("X-Request-Id"), operation_id
        if not kind.endswith("json"):
            if status < 300:
                self.seen.add(operation_id)
            return body
        value = json.loads(body)
        self.validate(content[kind]["schema"], value)
        if status >= 400:
            assert value["status"] == status, value
            assert value["type"].endswith("/" + value["error"]["code"]), value
        else:
            self.seen.add(operation_id)
        return value


class Refused(Exception):
    def __init__(self, status, problem, headers):
        self.status, self.error, self.headers = status, problem["error"], headers
        super().__init__(f"{status}: {problem}")


class Checked:
    """A client whose every reply is judged."""

    def __init__(self, client, description):
        self.client, self.description = client, description

    def reply(self, operation_id, *, json=None, body=None, headers=None, query=None, **path):
        """(status, headers, parsed body) of an operation."""
        # pylint: disable=redefined-outer-name
        method, pattern, _ = self.description.operations[operation_id]
        target = re.sub(r"\{(\w+)\}", lambda m: urllib.parse.quote(path.pop(m[1]), safe=""),
                        pattern)
        assert not path, path
        if query:
            target += "?" + urllib.parse.urlencode(query)
        headers = dict(headers or {})
        if json is not None:
            body = dumps(json)
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
        status, got, content = self.client.raw(method, target, body, headers)
        return status, got, self.description.judge(operation_id, status, got, content)

    def ok(self, operation_id, **arguments):
        status, headers, value = self.reply(operation_id, **arguments)
        if status >= 300:
            raise Refused(status, value, headers)
        return value

    def refused(self, operation_id, **arguments):
        status, headers, value = self.reply(operation_id, **arguments)
        assert 400 <= status < 500, f"{operation_id} is not refused: {status} {value}"
        return Refused(status, value, headers)

    def upload(self, content, filename="words.txt", headers=None, **fields):
        """The reply to a form of these fields and a file part."""
        fields = {"purpose": "fine-tune", **fields}
        boundary = uuid.uuid4().hex
        parts = [f"--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n"
                 f"{value}\r\n".encode() for name, value in fields.items() if value is not None]
        if content is not None:
            parts.append(f"--{boundary}\r\nContent-Disposition: form-data; name=\"file\"; "
                         f"filename=\"{filename}\"\r\n\r\n".encode() + content + b"\r\n")
        return self.reply("files_create", body=b"".join(parts) + f"--{boundary}--\r\n".encode(),
                          headers={"Content-Type": f"multipart/form-data; boundary={boundary}",
                                   **(headers or {})})


def dumps(value):
    return json.dumps(value).encode()


def job(file, **more):
    """A small language model's job."""
    spec = {
        "task": "language_model", "name": "words",
        "model": {"config": {"family": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 16,
                             "n_positions": 32}},
        "training_file": file, "validation_file": file,
        "data": {"format": "text", "tokenizer": "bytes", "sequence_length": 16},
        "hyperparameters": {"max_steps": 4, "batch_size": 4, "learning_rate": 0.003},
        "checkpoint": {"every_steps": 2, "keep": 2}, "evaluation": {"every_steps": 2},
        "resources": {"instance_type": "cpu-dev"}, "seed": 5,
    }
    return {**spec, **more}
