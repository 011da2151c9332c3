# SPDX-License-Identifier: Apache-2.0
"""Data stays where it must: a US-only job waits for a US device and says why."""
import pytest

from yards import ApiError, gpt2_job, succeeded, wait_for, words


@pytest.fixture(scope="module")
def european(make_yard):
    """A yard whose only devices are in Europe."""
    return make_yard(devices=1, region="eu-west-1")


def test_us_job_waits_for_a_us_device_and_says_why(european):
    client, _ = european.tenant(["us"])
    text = client.upload(words(5000), "words.txt")["id"]
    job = client.post("/v1/jobs", gpt2_job(text, 20))
    path = f"/v1/jobs/{job['id']}"
    blocked = wait_for(lambda: client.get(path)["queue"]["blocked_by"], "it says what blocks it")
    assert "residency" in blocked["code"], blocked
    assert "us" in blocked["message"] and "eu-west-1" in blocked["message"], blocked
    refused = european.sql("select allowed, place, question from residency_decisions "
                           f"where subject like '%{job['id']}%' and not allowed")
    assert ["f", "eu-west-1", "dispatch"] in refused, refused

    european.up("--agents", "2", "--devices", "1", "--region", "us-east-1")
    job = succeeded(client, job, 60)
    assert [a["region"] for a in job["attempts"]] == ["us-east-1"]
    regions = european.sql(
        "select distinct d.region from segments s join devices d on d.id = s.device_id "
        f"where s.job_id = '{job['id']}'")
    assert regions == [["us-east-1"]]
    allowed = european.sql("select question from residency_decisions where allowed and "
                           "place = 'us-east-1' group by 1 order by 1")
    assert {row[0] for row in allowed} >= {"dispatch", "fetch"}, allowed
    european.assert_tiled()


def test_children_may_only_tighten(yard):
    client, _ = yard.tenant(["us"])
    text = client.upload(words(5000), "words.txt")["id"]
    for wider in (["eu"], ["any"], ["us", "eu"]):
        with pytest.raises(ApiError) as refused:
            client.post("/v1/jobs", gpt2_job(text, 5, residency=wider))
        assert refused.value.error["code"] == "residency_refused", refused.value
    job = succeeded(client, client.post("/v1/jobs", gpt2_job(text, 5, residency=["us-east"])))
    assert job["residency"]["set"] == ["us-east"]


def test_upload_is_refused_where_the_store_may_not_hold_it(yard):
    client, _ = yard.tenant(["eu"])
    with pytest.raises(ApiError) as refused:
        client.upload(words(100), "words.txt")
    assert (refused.value.status, refused.value.error["code"]) == (403, "residency_refused")
    assert not list(client.pages("/v1/files"))


def test_unknown_region_is_refused(yard):
    with pytest.raises(ApiError) as refused:
        yard.operator.post("/v1/tenants", {"name": "x", "residency": ["atlantis"]})
    assert 400 <= refused.value.status < 500
