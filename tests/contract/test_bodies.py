# SPDX-License-Identifier: Apache-2.0
"""Bodies that must be refused: each gives a 4xx that names the field by its JSON path."""
import copy

import pytest

from contract import dumps, job

FILE = "file_01ARZ3NDEKTSV4RRFFQ69G5FAV"
WORDS = b"the engine takes the load north and the yard is quiet\n" * 60


@pytest.fixture(scope="module")
def posts(yard, operator, description):
    """operation: (a function that posts a body, a good body)"""
    from client import Client  # pylint: disable=import-outside-toplevel
    from contract import Checked  # pylint: disable=import-outside-toplevel
    made = operator.ok("tenants_create", json={"name": "bodies"})
    key = operator.ok("api_keys_create", id=made["id"], json={"name": "test", "role": "owner"})
    tenant = Checked(Client(yard.url, key["key"]), description)
    file = tenant.upload(WORDS)[2]["id"]
    return {
        "jobs_create": (lambda **sent: tenant.refused("jobs_create", **sent), job(file)),
        "tenants_create": (lambda **sent: operator.refused("tenants_create", **sent),
                           {"name": "x", "residency": ["us"]}),
        "api_keys_create": (lambda **sent: operator.refused(
            "api_keys_create", id=made["id"], **sent), {"name": "x", "role": "member"}),
    }


OPERATIONS = ("jobs_create", "tenants_create", "api_keys_create")


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("body, codes", [
    (b"", {"invalid_type", "missing_field", "invalid_json", "invalid_request"}),
    (b"{", {"invalid_json"}), (b"[]", {"invalid_type"}),
    (b"null", {"invalid_type", "missing_field"}),
    (b"7", {"invalid_type", "invalid_json"}), (b'{"name": "\xff"}', {"invalid_json"}),
    (b'{"name": "a", "name": "b"}', {"invalid_json"}), (b'{"name": "a\\u0000b"}', {"invalid_json"}),
    (b'{"x":' * 200 + b"1" + b"}" * 200, {"invalid_json"}), (b"[" * 100000, {"invalid_json"}),
    (b'{"name": 1e999}', {"invalid_json", "invalid_type"}), (b'{"name": "x"} {}', {"invalid_json"}),
    (b'{"name": "' + b"x" * (1 << 20) + b'"}', {"too_large"}),
    (b'{"name": 123456789012345678901234567890}', {"invalid_json", "invalid_type"}),
], ids=["empty", "cut", "array", "null", "number", "bytes", "twice", "nul", "deep", "deeper",
        "infinite", "trailing", "megabyte", "integer"])
def test_what_is_not_one_good_object(posts, operation, body, codes):
    refused = posts[operation][0](body=body)
    assert refused.error["code"] in codes, refused


@pytest.mark.parametrize("operation", OPERATIONS)
def test_unknown_field(posts, operation):
    post, good = posts[operation]
    refused = post(json={**good, "colour": "red"})
    assert (refused.error["code"], refused.error["param"]) == ("unknown_field", "$.colour")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_required_fields(posts, description, operation):
    post, good = posts[operation]
    content = description.operations[operation][2]["requestBody"]["content"]
    schema = description.resolve(content["application/json"]["schema"])
    for field in schema["required"]:
        refused = post(json={key: value for key, value in good.items() if key != field})
        assert refused.error["code"] == "missing_field", (field, refused)
        assert refused.error["param"] == f"$.{field}", (field, refused)


def test_the_content_type_must_say_json(posts):
    post, good = posts["jobs_create"]
    refused = post(body=dumps(good), headers={"Content-Type": "text/plain"})
    assert (refused.status, refused.error["param"]) == (415, "Content-Type")


def places(description, schema, path=()):
    """(path, schema) of every field of an object, depth first."""
    schema = description.resolve(schema)
    for option in schema.get("anyOf", []):
        yield from places(description, option, path)
    for name, field in schema.get("properties", {}).items():
        field = {**description.resolve(field), **field}
        yield (*path, name), field
        yield from places(description, field, (*path, name))


def replaced(body, path, value):
    body = copy.deepcopy(body)
    at = body
    for name in path[:-1]:
        if not isinstance(at.get(name), dict):
            at[name] = {}
        at = at[name]
    at[path[-1]] = value
    return body


LLAMA = {"family": "llama", "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16,
         "intermediate_size": 32, "max_position_embeddings": 32}
DLRM = {"family": "dlrm", "dense_features": 2, "embedding_dim": 4, "table_rows": [9, 9],
        "bottom": [4], "top": [4]}
# fields of a config: (task, a config that has them)
CONFIGS = (
    ({"hidden", "channels", "blocks_per_stage", "block", "in_channels", "in_height", "in_width",
      "n_classes"}, "image_classification", {"family": "cnn", "channels": [4]}),
    ({"stem", "blocks"}, "image_classification",
     {"family": "cnn", "block": "basic", "channels": [4], "blocks": [1]}),
    (set(LLAMA) - {"family"} | {"num_key_value_heads", "rms_norm_eps", "rope_theta",
                                "tie_word_embeddings"}, "language_model", LLAMA),
    (set(DLRM) - {"family"} | {"lookups"}, "click_through", DLRM),
)


def good_for(path, good):
    """A body in which a field of the path is looked at."""
    other = {"validation_file": None, "data": None}
    if path[:2] == ("model", "config"):
        for fields, task, config in CONFIGS:
            if path[-1] in fields:
                files = [FILE, FILE] if task == "image_classification" else FILE
                return {**good, **other, "task": task, "training_file": files,
                        "model": {"config": config}}
    if path[:2] == ("model", "preset"):
        return {**good, "model": {"preset": "gpt2-tiny"}}
    if path[0] == "data" and path[-1] in ("label_column", "categorical"):
        return {**good, **other, "task": "click_through", "model": {"config": DLRM}}
    if path[0] == "data" and path[-1] in ("flip", "crop_padding"):
        return {**good, **other, "task": "image_classification", "training_file": [FILE, FILE],
                "model": {"preset": "mnist-cnn"}}
    return good


def test_every_field_of_a_job_refuses_what_it_is_not(posts, description):
    """Wrong types, and numbers beyond 64 bits, at every place of the described spec."""
    post, good = posts["jobs_create"]
    schema = description.schema("JobSpec")
    tried = 0
    for path, _ in places(description, schema):
        for wrong in ({"a": {"b": []}}, True, [[]], 1 << 70, -1 << 70):
            if wrong is True and path[-1] in ("shuffle", "packing", "preemptible", "flip",
                                              "tie_word_embeddings"):
                continue
            if path == ("metadata",) and isinstance(wrong, dict):
                continue  # of another kind: its value is refused, the name of the pair is said
            refused = post(json=replaced(good_for(path, good), path, wrong))
            if abs(wrong if isinstance(wrong, int) else 0) >= 1 << 63:
                assert refused.error["code"] in ("invalid_json", "invalid_type", "invalid_value"), (
                    path, refused)
                continue
            expected = "$." + ".".join(path)
            assert refused.error["code"] in ("invalid_type", "invalid_value", "unknown_field",
                                             "missing_field"), (path, wrong, refused)
            assert (refused.error["param"] or "").startswith(expected), (path, wrong, refused)
            tried += 1
    assert tried > 280


def test_unknown_fields_inside(posts, description):
    post, good = posts["jobs_create"]
    for path, schema in places(description, description.schema("JobSpec")):
        if "properties" in schema:
            refused = post(json=replaced(good_for(path, good), (*path, "colour"), 1))
            assert refused.error["code"] == "unknown_field", (path, refused)
            assert refused.error["param"] == "$." + ".".join(path) + ".colour", (path, refused)


# name: (change, code, start of param)
BAD_VALUES = {
    "long name": ({"name": "x" * 65}, None, "$.name"),
    "control character": ({"name": "a\nb"}, None, "$.name"),
    "fraction": ({"seed": 1.5}, "invalid_type", "$.seed"),
    "negative": ({"seed": -1}, "invalid_value", "$.seed"),
    "17 pairs": ({"metadata": {str(i): "x" for i in range(17)}}, "invalid_value", "$.metadata"),
    "long key": ({"metadata": {"k" * 65: "x"}}, "invalid_value", "$.metadata"),
    "long value": ({"metadata": {"k": "x" * 513}}, "invalid_value", "$.metadata"),
    "value that is no text": ({"metadata": {"k": 1}}, "invalid_type", "$.metadata"),
    "no file": ({"training_file": []}, None, "$.training_file"),
    "nine files": ({"training_file": [FILE] * 9}, None, "$.training_file"),
    "no such file": ({"training_file": FILE}, "invalid_value", "$.training_file"),
    "a path as file": ({"training_file": "../../etc/passwd"}, "invalid_value", "$.training_file"),
    "no such type": ({"resources": {"instance_type": "abacus"}}, "invalid_value",
                     "$.resources.instance_type"),
    "type with quote": ({"resources": {"instance_type": "x'; drop table jobs; --"}},
                        "invalid_value", "$.resources.instance_type"),
    "tf32 on a device that has none": ({"precision": "tf32"}, "invalid_value", "$.precision"),
    "weights that are not rounded": ({"hyperparameters": {"stochastic_rounding": True}},
                                     "invalid_value", "$.hyperparameters.stochastic_rounding"),
    "unknown region": ({"residency": ["atlantis"]}, "invalid_value", "$.residency"),
    "money": ({"limits": {"max_cost": "-1"}}, "invalid_value", "$.limits.max_cost"),
    "money too fine": ({"limits": {"max_cost": "0.0000001"}}, "invalid_value", "$.limits.max_cost"),
    "money for less than a second": ({"limits": {"max_cost": "0.000001"},
                                      "resources": {"instance_type": "h100-80gb"}},
                                     "invalid_value", "$.limits.max_cost"),
    "a base that is nobody's": ({"model": {"base": "ckpt_01ARZ3NDEKTSV4RRFFQ69G5FAV"}}, "not_found",
                                "$.model.base"),
    "a file as base": ({"model": {"base": FILE}}, "invalid_value", "$.model.base"),
    "no model": ({"model": {}}, "missing_field", "$.model"),
    "two models": ({"model": {"preset": "gpt2-tiny", "base": "job_1"}}, "invalid_value",
                   "$.model"),
    "a family of another task": ({"task": "click_through"}, "invalid_value", "$.model"),
    "a format of another task": ({"data": {"format": "idx"}}, "invalid_value", "$.data.format"),
    "no such tokenizer": ({"data": {"tokenizer": FILE}, "model": {"preset": "gpt2-tiny"}},
                          "invalid_value", "$.data.tokenizer"),
    "a vocabulary of no size": ({"data": {"tokenizer": FILE}}, "invalid_value",
                                "$.model.config.vocab_size"),
    "a vocabulary too small": ({"data": {"tokenizer": "gpt2"}, "model": {"config": {
        "family": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 32,
        "vocab_size": 256}}}, "invalid_value", "$.data.tokenizer"),
    "adapters on nothing": ({"lora": {}}, "invalid_value", "$.lora"),
    "a module that the family lacks": ({"lora": {"target_modules": ["q_proj"]}}, "invalid_value",
                                       "$.lora.target_modules"),
    "too large": ({"model": {"config": {"family": "gpt2", "n_layer": 96, "n_head": 96,
                                        "n_embd": 12288, "n_positions": 2048}}},
                  "plan_exceeds_memory", "$.model"),
}


@pytest.mark.parametrize("name", BAD_VALUES)
def test_values_of_a_job(posts, name):
    change, code, param = BAD_VALUES[name]
    post, good = posts["jobs_create"]
    refused = post(json={**good, **change})
    assert code is None or refused.error["code"] == code, refused
    assert refused.error["param"].startswith(param), refused


def test_the_second_of_two_files_is_named(posts):
    post, good = posts["jobs_create"]
    refused = post(json={**good, "training_file": [good["training_file"], FILE]})
    assert refused.error["param"] == "$.training_file[1]", refused


def test_an_unknown_instance_type_lists_those_that_are(posts):
    post, good = posts["jobs_create"]
    refused = post(json={**good, "resources": {"instance_type": "abacus"}})
    assert "cpu-dev" in refused.error["message"] and "h100-80gb" in refused.error["message"]


def test_a_plan_too_large_says_both_figures(posts):
    post, good = posts["jobs_create"]
    message = post(json={**good, **BAD_VALUES["too large"][0]}).error["message"]
    assert message.count(" bytes (") == 2 and message.count(" GiB)") == 2, message


# operation: (change, start of param)
@pytest.mark.parametrize("operation, change, param", [
    ("tenants_create", {"name": ""}, "$.name"), ("tenants_create", {"name": "x" * 65}, "$.name"),
    ("tenants_create", {"name": 5}, "$.name"), ("tenants_create", {"name": "a\tb"}, "$.name"),
    ("tenants_create", {"residency": []}, "$.residency"),
    ("tenants_create", {"residency": "us"}, "$.residency"),
    ("tenants_create", {"residency": [5]}, "$.residency[0]"),
    ("tenants_create", {"residency": ["us", "atlantis"]}, "$.residency[1]"),
    ("tenants_create", {"residency": ["us"] * 9}, "$.residency"),
    ("api_keys_create", {"name": "x" * 65}, "$.name"),
    ("api_keys_create", {"role": "operator"}, "$.role"),
    ("api_keys_create", {"role": "agent"}, "$.role"), ("api_keys_create", {"role": 1}, "$.role"),
])
def test_values_of_operators(posts, operation, change, param):
    post, good = posts[operation]
    refused = post(json={**good, **change})
    assert refused.error["param"] == param, refused
