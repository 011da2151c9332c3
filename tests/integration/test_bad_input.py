# SPDX-License-Identifier: Apache-2.0
"""Bad input: each is a 4xx, or a failed job, that names the field, the file and the position."""
import re
import socket

import pytest

from yards import ApiError, done, gpt2_job, idx_images, idx_labels, mlp_job, words

IMAGES, LABELS = idx_images(64), idx_labels(64)

# name: (images, labels, the file to blame, what the message must match)
BAD_IDX = {
    "truncated": (IMAGES[:-100], LABELS, "images", r"\d+"),
    "label out of range": (IMAGES, idx_labels(64, wrong_at=17), "labels", r"\b17\b"),
    "empty": (b"", LABELS, "images", r"empty|0 bytes"),
    "wrong magic": (idx_images(64, magic=0xdead), LABELS, "images", r"(?i)magic|0x0000dead"),
    "fewer labels": (IMAGES, idx_labels(60), "labels", r"\b6[04]\b"),
}


def refusal(client, post):
    """(code, text) of a request's refusal or of the failed job that it became."""
    try:
        job = post()
    except ApiError as error:
        assert 400 <= error.status < 500, error
        assert error.problem["status"] == error.status  # RFC 9457 beside OpenAI's form
        assert {"type", "title", "detail"} <= set(error.problem)
        return error.error["code"], f"{error.error['param']} {error.error['message']}"
    job = done(client, job)
    assert job["status"] == "failed", job["status"]
    return job["error"]["code"], f"{job['error']['param']} {job['error']['message']}"


@pytest.mark.parametrize("name", BAD_IDX)
def test_bad_idx(client, name):
    images, labels, blamed, pattern = BAD_IDX[name]
    ids = {}

    def post():
        for label, content in (("images", images), ("labels", labels)):
            ids[label] = client.upload(content, f"{label}.idx")["id"]
        return client.post("/v1/jobs", mlp_job(ids["images"], ids["labels"]))

    code, text = refusal(client, post)
    assert code in ("invalid_data", "user_error", "invalid_value", "invalid_request"), (code, text)
    if blamed in ids:
        assert "training_file" in text and f"{blamed}.idx" in text, text
    else:  # refused at upload, where the request has but the one file
        assert text.startswith("file "), text
    assert re.search(pattern, text), text


def test_text_that_is_not_utf8(client):
    content = words(5000)
    bad = content[:3210] + b"\xff" + content[3210:]
    file = client.upload(bad, "bad.txt")["id"]
    code, text = refusal(client, lambda: client.post("/v1/jobs", gpt2_job(file, 10)))
    assert code in ("invalid_data", "user_error"), (code, text)
    assert "bad.txt" in text and "3210" in text, text


# name: (change, code, param)
BAD_SPECS = {
    "unknown field": ({"colour": "red"}, "unknown_field", "$.colour"),
    "unknown nested field": ({"model": {"config": {
        "family": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 32,
        "vocab_size": 256, "n_layers": 2}}}, "unknown_field", "$.model.config.n_layers"),
    "wrong type": ({"seed": "five"}, "invalid_type", "$.seed"),
    "wrong nested type": ({"hyperparameters": {"batch_size": [1]}}, "invalid_type",
                          "$.hyperparameters.batch_size"),
    "fraction for a whole number": ({"hyperparameters": {"batch_size": 1.5}}, None,
                                    "$.hyperparameters.batch_size"),
    "out of range": ({"hyperparameters": {"batch_size": 0}}, "invalid_value",
                     "$.hyperparameters.batch_size"),
    "unknown instance type": ({"resources": {"instance_type": "abacus"}}, None,
                              "$.resources.instance_type"),
    "unknown region": ({"residency": ["atlantis"]}, None, "$.residency"),
    "unknown word": ({"task": "alchemy"}, "invalid_value", "$.task"),
    "heads that do not divide": ({"model": {"config": {
        "family": "gpt2", "n_layer": 2, "n_head": 3, "n_embd": 32, "n_positions": 32,
        "vocab_size": 256}}}, "invalid_value", "$.model.config"),
    "no such file": ({"training_file": "file_01ARZ3NDEKTSV4RRFFQ69G5FAV"}, None, "$.training_file"),
}


@pytest.fixture(scope="module")
def words_file(yard):
    client = yard.tenant()[0]
    return client, client.upload(words(5000), "words.txt")["id"]


@pytest.mark.parametrize("name", BAD_SPECS)
def test_bad_spec_is_refused_at_submit(words_file, name):
    client, file = words_file
    change, code, param = BAD_SPECS[name]
    with pytest.raises(ApiError) as refused:
        client.post("/v1/jobs", gpt2_job(file, 10, **change))
    assert 400 <= refused.value.status < 500
    assert (refused.value.error["param"] or "").startswith(param), refused.value
    assert code is None or refused.value.error["code"] == code, refused.value
    assert not list(client.pages("/v1/jobs"))


# name: (body, code)
BAD_JSON = {
    "not JSON": (b"{", "invalid_json"),
    "an array": (b"[]", "invalid_type"),
    "a key twice": (b'{"task": "language_model", "task": "regression"}', "invalid_json"),
    "too deep": (b'{"metadata": ' * 40 + b"1" + b"}" * 40, "invalid_json"),
    "not UTF-8": (b'{"name": "\xff"}', "invalid_json"),
}


@pytest.mark.parametrize("name", BAD_JSON)
def test_bad_json(client, name):
    body, code = BAD_JSON[name]
    with pytest.raises(ApiError) as refused:
        client.call("POST", "/v1/jobs", body)
    assert refused.value.status == 400
    assert refused.value.error["code"] == code, refused.value


def test_a_megabyte_of_json_is_refused_before_it_is_read(client):
    body = b'{"name": "' + b"x" * (1 << 20) + b'"}'
    head = (f"POST /v1/jobs HTTP/1.1\r\nHost: yard\r\nAuthorization: Bearer {client.key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n").encode()
    with socket.create_connection((client.host, client.port), 20) as plug:
        plug.sendall(head)  # not a byte of the body yet
        answer = plug.recv(65536)
    assert answer.startswith(b"HTTP/1.1 413 "), answer[:200]
    assert client.raw("GET", "/livez")[0] == 200


def test_plan_larger_than_the_device_is_refused_with_both_figures(words_file):
    client, file = words_file
    huge = {"family": "gpt2", "n_layer": 48, "n_head": 25, "n_embd": 1600, "n_positions": 1024,
            "vocab_size": 256}
    with pytest.raises(ApiError) as refused:
        client.post("/v1/jobs", gpt2_job(file, 10, model={"config": huge},
                                         data={"sequence_length": 1024}))
    assert refused.value.error["code"] == "plan_exceeds_memory", refused.value
    figures = [int(text.replace(",", "")) for text in
               re.findall(r"\d[\d,]{8,}", refused.value.error["message"])]
    types = {row["name"] if "name" in row else row["id"]: row
             for row in client.get("/v1/instance-types")["data"]}
    assert types["cpu-dev"]["memory_bytes"] in figures, refused.value
    assert max(figures) > types["cpu-dev"]["memory_bytes"]


@pytest.mark.parametrize("method, path, status", [
    ("GET", "/v1/nothing", 404), ("DELETE", "/v1/jobs", 405),
    ("GET", "/v1/jobs/job_01ARZ3NDEKTSV4RRFFQ69G5FAV", 404), ("GET", "/v1/jobs/../files", 404),
    ("GET", "/v1/jobs?limit=0", 400), ("GET", "/v1/jobs?limit=ten", 400),
    ("GET", "/v1/jobs?colour=red", 400), ("POST", "/v1/tenants", 403), ("GET", "/v1/devices", 403),
])
def test_requests_that_are_refused(client, method, path, status):
    body = b"{}" if method == "POST" else None
    headers = {"Content-Type": "application/json"} if body else {}
    found, _, answer = client.raw(method, path, body, headers)
    assert found == status, answer


def test_without_a_key_and_with_a_broken_one(client):
    good = client.key
    for key in (None, "nonsense", good[:-1] + ("a" if good[-1] != "a" else "b"), good + "x"):
        client.key = key
        assert client.raw("GET", "/v1/jobs")[0] == 401, key
    client.key = good
    assert client.raw("GET", "/v1/jobs")[0] == 200
