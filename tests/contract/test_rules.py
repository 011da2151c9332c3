# SPDX-License-Identifier: Apache-2.0
"""Rules that hold over operations: pages, repetitions, strangers, arguments."""
import itertools
import threading

import pytest

from contract import job

WORDS = b"the engine takes the load north and the yard is quiet\n" * 60
NOBODY = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


def test_pages_walk_a_list_once_both_ways(tenant):
    ids = [tenant.upload(WORDS + str(i).encode())[2]["id"] for i in range(5)]
    whole = [file["id"] for file in tenant.ok("files_list")["data"]]
    assert sorted(whole) == sorted(ids) and whole == sorted(whole, reverse=True)
    for limit in (1, 2, 3, 5):
        seen, query = [], {"limit": limit}
        while True:
            page = tenant.ok("files_list", query=query)
            seen += [file["id"] for file in page["data"]]
            assert page["last_id"] == seen[-1]
            if not page["has_more"]:
                break
            query["after"] = page["last_id"]
            # Newer rows that arrive meanwhile do not move the pages that follow.
            tenant.upload(b"later")
        assert [one for one in seen if one in ids] == whole
    back, query = [], {"limit": 2, "before": whole[-1]}
    for _ in range(2):
        page = tenant.ok("files_list", query=query)
        back = [file["id"] for file in page["data"]] + back
        query["before"] = page["first_id"]
    assert back == whole[:-1]


@pytest.mark.parametrize("operation, arguments", [
    ("jobs_list", {}), ("files_list", {}), ("models_list", {}), ("invoices_list", {}),
])
@pytest.mark.parametrize("query, param", [
    ({"limit": "0"}, "limit"), ({"limit": "101"}, "limit"), ({"limit": "1.5"}, "limit"),
    ({"limit": "9" * 40}, "limit"), ({"after": "x"}, "after"), ({"before": "job_"}, "before"),
    ({"after": "job_" + "'" * 26}, "after"), ({"colour": "red"}, "colour"),
    ({"after": "\0"}, None), ({"after": "\ud83d\ude00"}, None),
])
def test_arguments_that_are_refused(tenant, operation, arguments, query, param):
    query = {key: value.encode("utf-8", "surrogatepass") for key, value in query.items()}
    refused = tenant.refused(operation, query=query, **arguments)
    assert refused.status == 400
    assert param is None or refused.error["param"] == param, refused


@pytest.mark.parametrize("query, param", [
    ({"status": "done"}, "status"), ({"instance_type": "a b"}, "instance_type"),
    ({"metadata[]": "x"}, "metadata"), ({"metadata[" + "k" * 65 + "]": "x"}, "metadata"),
    ({"metadata[k]": "x" * 513}, "metadata"), ({"metadata[k]": b"\xff"}, None),
    ({f"metadata[{i}]": "x" for i in range(17)}, "metadata"),
])
def test_filters_that_are_refused(tenant, query, param):
    refused = tenant.refused("jobs_list", query=query)
    assert param is None or refused.error["param"] == param, refused


def test_strangers_get_what_nobody_gets(make_tenant):
    """A stranger's id, an unknown one and nonsense are answered alike, but for the request id."""
    mine, other = make_tenant(), make_tenant()
    file = mine.upload(WORDS)[2]["id"]
    made = mine.ok("jobs_create", json=job(file, resources={"instance_type": "h100-80gb"}))["id"]
    asked = [("files_get", file, "file_"), ("files_content", file, "file_"),
             ("files_delete", file, "file_"), ("jobs_get", made, "job_"),
             ("job_events", made, "job_"), ("job_checkpoints", made, "job_"),
             ("jobs_cancel", made, "job_")]
    for operation, foreign, prefix in asked:
        answers = []
        for one in (foreign, prefix + NOBODY, "nonsense", "%00", "' or 1=1 --"):
            status, _, problem = other.reply(operation, id=one)
            assert status == 404, (operation, one, problem)
            answers.append({**problem, "instance": None})
        if operation in ("jobs_cancel",):
            continue  # said in the words of the job's own rules
        assert all(answer == answers[0] for answer in answers), (operation, answers)
    assert mine.ok("jobs_get", id=made)["status"] == "queued"
    mine.ok("jobs_cancel", id=made)


def test_operators_act_for_a_tenant_only_when_they_name_it(operator, tenant):
    file = tenant.upload(WORDS)[2]["id"]
    mine = {"X-Tenant-Id": tenant.tenant_id}
    assert operator.ok("files_get", id=file, headers=mine)["id"] == file
    assert operator.ok("files_list", query={"tenant_id": tenant.tenant_id})["data"]
    assert operator.refused("files_get", id=file).status in (400, 403, 404)
    other = {"X-Tenant-Id": "tenant_" + NOBODY}
    assert operator.refused("files_get", id=file, headers=other).status in (403, 404)
    for operation in ("tenants_list", "devices_list"):
        assert tenant.refused(operation).status == 403
    assert tenant.refused("devices_return", id="dev_" + NOBODY).status == 403


# ------------------------------------------------------------------ Idempotency-Key

def test_the_first_answer_is_repeated(tenant):
    spec = job(tenant.upload(WORDS)[2]["id"], resources={"instance_type": "h100-80gb"})
    key = {"Idempotency-Key": "once"}
    status, headers, first = tenant.reply("jobs_create", json=spec, headers=key)
    assert status == 201 and "Idempotent-Replayed" not in headers
    tenant.ok("jobs_cancel", id=first["id"])
    again, repeated, second = tenant.reply("jobs_create", json=spec, headers=key)
    assert (again, second) == (status, first)  # as it was, not as it is
    assert repeated["Idempotent-Replayed"] == "true"
    assert repeated["Location"] == headers["Location"]
    refused = tenant.refused("jobs_create", json={**spec, "seed": 6}, headers=key)
    assert (refused.status, refused.error["code"]) == (422, "idempotency_key_reuse")
    assert len(tenant.ok("jobs_list")["data"]) == 1
    assert tenant.ok("jobs_create", json=spec)["id"] != first["id"]  # without the key


def test_a_refusal_leaves_the_key_free(tenant):
    key = {"Idempotency-Key": "again"}
    file = tenant.upload(WORDS)[2]["id"]
    tenant.refused("jobs_create", json=job("file_" + NOBODY), headers=key)
    spec = job(file, resources={"instance_type": "h100-80gb"})
    tenant.ok("jobs_create", json=spec, headers=key)


def test_a_key_is_kept_for_a_day(yard, tenant):
    if not hasattr(yard, "sql"):
        pytest.skip("the database of this yard cannot be asked")
    key = {"Idempotency-Key": "day"}
    first = tenant.upload(WORDS, headers=key)[2]["id"]
    for age, same in (("23 hours", True), ("25 hours", False)):
        yard.sql(f"update idempotency_keys set created_at = yard_now() - interval '{age}'"
                 f" where owner = '{tenant.tenant_id}'")
        assert (tenant.upload(WORDS, headers=key)[2]["id"] == first) is same, age


def test_uploads_are_the_same_when_content_and_fields_are(tenant):
    key = {"Idempotency-Key": "file"}
    first = tenant.upload(WORDS, headers=key)[2]
    status, headers, second = tenant.upload(WORDS, headers=key)
    assert (status, second, headers["Idempotent-Replayed"]) == (200, first, "true")
    for other in ({"content": WORDS + b"."}, {"content": WORDS, "purpose": "other"},
                  {"content": WORDS, "filename": "b"}):
        assert tenant.upload(**other, headers=key)[0] == 422, other
    assert len(tenant.ok("files_list")["data"]) == 1


def test_keys_of_two_tenants_are_two(make_tenant):
    made = [tenant.upload(WORDS, headers={"Idempotency-Key": "same"})[2]["id"]
            for tenant in (make_tenant(), make_tenant())]
    assert made[0] != made[1]


def test_a_secret_is_not_repeated(operator, tenant):
    key = {"Idempotency-Key": tenant.tenant_id}
    first = operator.ok("api_keys_create", id=tenant.tenant_id, json={"name": "k"}, headers=key)
    second = operator.ok("api_keys_create", id=tenant.tenant_id, json={"name": "k"}, headers=key)
    assert second == {name: value for name, value in first.items() if name != "key"}
    names = [one["name"] for one in operator.ok("api_keys_list", id=tenant.tenant_id)["data"]]
    assert names.count("k") == 1


@pytest.mark.parametrize("value", ["", "x" * 256, "a\tb"])
def test_keys_that_are_refused(tenant, value):
    status, _, problem = tenant.upload(WORDS, headers={"Idempotency-Key": value})
    assert status == 400, problem
    assert tenant.ok("files_list")["data"] == []


def test_a_crowd_with_one_key_makes_one_file(tenant):
    answers, counter = [], itertools.count()

    def post():
        next(counter)
        answers.append(tenant.upload(WORDS, headers={"Idempotency-Key": "crowd"}))

    crowd = [threading.Thread(target=post) for _ in range(10)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join(60)
    assert len(answers) == 10
    made = {body["id"] for status, _, body in answers if status == 200}
    busy = [(headers, body) for status, headers, body in answers if status != 200]
    assert len(made) == 1
    for headers, body in busy:
        assert body["error"]["code"] == "idempotency_in_flight", body
        assert int(headers["Retry-After"]) >= 1
    assert len(tenant.ok("files_list")["data"]) == 1
