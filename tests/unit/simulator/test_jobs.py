"""The provider when it behaves: the wire that a provider's YAML is written against."""

import pytest

BODY = {"model": "q4", "prompt": "a cat"}


def test_job_is_queued_then_rendering_then_done(client, submit, poll, clock):
    job = submit(seconds=7, client_reference="ref-1")
    assert job["state"] == "queued"
    assert job["client_reference"] == "ref-1"
    assert job["created_at"] == "2027-01-15T08:00:00.000Z"
    assert job["outputs"] == []
    clock.now += 5
    assert poll(job)["state"] == "rendering"
    clock.now += 5
    done = poll(job)
    assert (done["state"], done["seconds"], done["error"]) == ("done", 7, None)
    [output] = done["outputs"]
    assert output["content_type"] == "video/mp4"
    assert output["url"].startswith("http://testserver/files/")
    video = client.get(output["url"], headers={"Authorization": ""})
    assert video.headers["content-type"] == "video/mp4"
    assert int(video.headers["content-length"]) == len(video.content)
    assert video.content[4:8] == b"ftyp"


def test_output_is_not_there_before_its_job_is_done(client, submit, poll, clock):
    job = submit()
    clock.now += 10
    url = poll(job)["outputs"][0]["url"]
    clock.now -= 1
    assert client.get(url).status_code == 404


def test_new_job_is_201_and_a_repeated_key_is_200_with_the_same_job(client):
    headers = {"Idempotency-Key": "k1"}
    first = client.post("/v1/jobs", json=BODY, headers=headers)
    again = client.post("/v1/jobs", json=BODY, headers=headers)
    other = client.post("/v1/jobs", json=BODY, headers={"Idempotency-Key": "k2"})
    assert (first.status_code, again.status_code, other.status_code) == (201, 200, 201)
    assert first.json() == again.json()
    assert other.json()["job"]["id"] != first.json()["job"]["id"]


def test_look_up_lists_the_jobs_of_a_reference_oldest_first(client, submit):
    first, second = submit(client_reference="x"), submit(client_reference="x")
    submit(client_reference="y")
    jobs = client.get("/v1/jobs", params={"client_reference": "x"}).json()["jobs"]
    assert [job["id"] for job in jobs] == [first["id"], second["id"]]
    none = client.get("/v1/jobs", params={"client_reference": "z"})
    assert none.json() == {"jobs": []}
    assert client.get("/v1/jobs").status_code == 400


def test_cancel_ends_a_job_that_is_under_way(client, submit, poll, clock):
    job = submit()
    answer = client.post(f"/v1/jobs/{job['id']}/cancel")
    assert (answer.status_code, answer.json()["job"]["state"]) == (200, "cancelled")
    clock.now += 60
    assert poll(job)["state"] == "cancelled"


def test_cancel_leaves_a_job_that_has_ended(client, submit, clock):
    job = submit()
    clock.now += 10
    answer = client.post(f"/v1/jobs/{job['id']}/cancel")
    assert (answer.status_code, answer.json()["job"]["state"]) == (200, "done")


def test_unknown_things_are_404(client):
    assert client.get("/v1/jobs/job_none").json()["error"]["code"] == "not_found"
    assert client.post("/v1/jobs/job_none/cancel").status_code == 404
    assert client.get("/files/none.mp4").status_code == 404


@pytest.mark.parametrize("header", ["", "Bearer wrong", "a-token", "Bearer a-token2"])
@pytest.mark.parametrize(
    ("verb", "path"),
    [
        ("POST", "/v1/jobs"),
        ("GET", "/v1/jobs?client_reference=x"),
        ("GET", "/v1/jobs/job_x"),
        ("POST", "/v1/jobs/job_x/cancel"),
    ],
)
def test_v1_wants_the_bearer_token(client, verb, path, header):
    answer = client.request(verb, path, headers={"Authorization": header})
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "unauthorized"


@pytest.mark.parametrize(
    "change",
    [
        {"model": None},
        {"prompt": ""},
        {"prompt": 5},
        {"aspect_ratio": "2:1"},
        {"seconds": "5"},
        {"with_audio": "yes"},
        {"unknown": 1},
    ],
)
def test_malformed_submission_is_400_and_no_job(client, change):
    answer = client.post("/v1/jobs", json={**BODY, **change})
    assert answer.status_code == 400
    assert next(iter(change)) in answer.json()["error"]["message"]
    assert client.get("/control/history").json()["submissions"] == []


def test_body_that_is_not_json_is_400(client):
    assert client.post("/v1/jobs", content=b"{").status_code == 400


def test_null_is_the_same_as_absent(submit):
    job = submit(audio_urls=None, aspect_ratio=None, seconds=None, client_reference=None)
    assert job["seconds"] == 5


def test_healthz_answers_without_a_credential(client):
    assert client.get("/healthz", headers={"Authorization": ""}).status_code == 200
