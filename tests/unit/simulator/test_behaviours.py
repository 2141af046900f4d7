"""Every behaviour that needs no real connection, switched on as docs/simulator.md shows."""

import time

import pytest
from starlette.responses import Response
from starlette.testclient import TestClient

from gateway_simulator.faults import Dripped, Flood

BODY = {"model": "q4", "prompt": "a cat"}


def test_fail_ends_the_job_in_error(submit, poll, rules, clock):
    rules({"behaviour": "fail", "code": "content_policy", "message": "No cats."})
    job = submit()
    assert poll(job)["state"] == "queued"
    clock.now += 10
    failed = poll(job)
    assert (failed["state"], failed["outputs"]) == ("error", [])
    assert failed["error"] == {"code": "content_policy", "message": "No cats."}


def test_stall_never_ends_the_job(client, submit, poll, rules, clock):
    rules({"behaviour": "stall"})
    job = submit()
    clock.now += 1_000_000
    assert poll(job)["state"] == "rendering"
    assert client.post(f"/v1/jobs/{job['id']}/cancel").json()["job"]["state"] == "cancelled"


def test_seconds_takes_a_range_and_each_job_draws_its_own(client, submit, rules):
    rules({"behaviour": "seconds", "seconds": "20-60"})
    for _ in range(20):
        submit()
    durations = {job["duration"] for job in client.get("/control/jobs").json()["jobs"]}
    assert len(durations) > 10
    assert all(20 <= duration <= 60 for duration in durations)


def test_ignore_idempotency_makes_another_job(client, submit, rules):
    first = submit(key="k", client_reference="x")
    rules({"behaviour": "ignore_idempotency", "count": 1})
    second = submit(key="k", client_reference="x")
    assert second["id"] != first["id"]
    assert submit(key="k", client_reference="x")["id"] == first["id"]
    assert client.get("/control/history").json()["jobs"] == 2


def test_ignore_idempotency_is_not_used_up_by_first_submissions(client, submit, rules):
    rules({"behaviour": "ignore_idempotency", "count": 1})
    submit(key="k")
    assert client.get("/control").json()["rules"][0]["applied"] == 0


def test_duplicate_id_answers_with_the_job_before(client, submit, rules):
    first = submit(key="k1")
    rules({"behaviour": "duplicate_id"})
    assert submit(key="k2")["id"] == first["id"]
    assert len(client.get("/control/jobs").json()["jobs"]) == 2


def test_duplicate_id_leaves_jobs_alone_that_its_rule_does_not_match(client, submit, rules):
    rules({"behaviour": "duplicate_id", "match": {"prompt_contains": "<mine>"}})
    first = submit(key="k1", prompt="<mine>")
    others = submit(key="k2", prompt="another")
    assert submit(key="k3", prompt="<mine>")["id"] == first["id"] != others["id"]


@pytest.mark.parametrize("point", ["submit", "poll"])
def test_lose_job_makes_the_job_unknown(client, submit, rules, point):
    rules({"behaviour": "lose_job", "count": 1, "match": {"on": point}})
    job = submit(key="k", client_reference="x")
    for _ in range(2):
        assert client.get(f"/v1/jobs/{job['id']}").status_code == 404
    assert client.get("/v1/jobs?client_reference=x").json() == {"jobs": []}
    assert client.post(f"/v1/jobs/{job['id']}/cancel").status_code == 404
    assert client.get("/control/jobs").json()["jobs"][0]["lost"] is True


def test_contradict_done_without_outputs(submit, poll, rules):
    job = submit()
    rules({"behaviour": "contradict", "kind": "done_without_outputs", "count": 1})
    shown = poll(job)
    assert (shown["state"], shown["outputs"]) == ("done", [])
    assert poll(job)["state"] == "queued"


def test_contradict_done_then_rendering(client, submit, poll, rules):
    job = submit()
    rules({"behaviour": "contradict", "kind": "done_then_rendering"})
    shown = poll(job)
    assert shown["state"] == "done"
    assert client.get(shown["outputs"][0]["url"]).status_code == 200
    assert [poll(job)["state"] for _ in range(2)] == ["rendering", "rendering"]


def test_foreign_output_names_another_host_once_done(submit, poll, rules, clock):
    job = submit()
    rules({"behaviour": "foreign_output", "url": "http://10.0.0.1/x.mp4"})
    assert poll(job)["outputs"] == []
    clock.now += 10
    assert poll(job)["outputs"][0]["url"] == "http://10.0.0.1/x.mp4"


@pytest.mark.parametrize("retry_after", [7, "Wed, 21 Oct 2026 07:28:00 GMT", "soon"])
def test_status_answers_an_error(client, rules, retry_after):
    rules({"behaviour": "status", "status": 429, "retry_after": retry_after, "code": "slow_down"})
    answer = client.post("/v1/jobs", json=BODY)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, str(retry_after))
    assert answer.json()["error"]["code"] == "slow_down"


@pytest.mark.parametrize(("when", "jobs"), [("before", 0), ("after", 1)])
def test_status_comes_before_or_after_the_job_is_recorded(client, rules, when, jobs):
    rules({"behaviour": "status", "status": 502, "when": when, "count": 1})
    assert client.post("/v1/jobs", json=BODY).status_code == 502
    assert client.get("/control/history").json()["jobs"] == jobs


@pytest.mark.parametrize("point", ["submit", "poll", "cancel", "lookup", "output"])
def test_status_can_be_had_at_each_kind_of_request(client, submit, poll, rules, clock, point):
    job = submit(client_reference="x")
    clock.now += 10
    output = poll(job)["outputs"][0]["url"]
    rules({"behaviour": "status", "status": 503, "match": {"on": point}})
    statuses = {
        "submit": client.post("/v1/jobs", json=BODY).status_code,
        "poll": client.get(f"/v1/jobs/{job['id']}").status_code,
        "cancel": client.post(f"/v1/jobs/{job['id']}/cancel").status_code,
        "lookup": client.get("/v1/jobs?client_reference=x").status_code,
        "output": client.get(output).status_code,
    }
    assert [name for name, status in statuses.items() if status == 503] == [point]


def test_hang_holds_the_answer_and_then_gives_it(client, submit, rules):
    rules({"behaviour": "hang", "seconds": 0.2, "count": 1})
    begin = time.monotonic()
    assert submit()["state"] == "queued"
    assert time.monotonic() - begin >= 0.2


def test_hang_and_a_status_add_up(client, rules):
    rules({"behaviour": "hang", "seconds": 0.1}, {"behaviour": "status", "status": 500})
    begin = time.monotonic()
    assert client.post("/v1/jobs", json=BODY).status_code == 500
    assert time.monotonic() - begin >= 0.1


@pytest.mark.parametrize(
    ("kind", "content_type", "starts"),
    [
        ("not_json", "application/json", "{"),
        ("wrong_json", "application/json", "["),
        ("html", "text/html", "<"),
    ],
)
def test_nonsense_is_no_job(client, rules, kind, content_type, starts):
    rules({"behaviour": "nonsense", "kind": kind})
    answer = client.post("/v1/jobs", json=BODY)
    assert answer.status_code == 201
    assert answer.headers["content-type"].startswith(content_type)
    assert answer.text.lstrip().startswith(starts)
    assert client.get("/control/history").json()["jobs"] == 1


def test_nonsense_huge(client, rules):
    rules({"behaviour": "nonsense", "kind": "huge", "bytes": 1_000_000})
    answer = client.post("/v1/jobs", json=BODY)
    assert len(answer.content) == 1_000_000
    assert "content-length" not in answer.headers
    assert answer.json().keys() == {"padding"}


def test_slow_drips_the_body(client, submit, rules):
    job = submit()
    rules({"behaviour": "slow", "bytes_per_second": 1000, "match": {"on": "poll"}})
    begin = time.monotonic()
    answer = client.get(f"/v1/jobs/{job['id']}")
    assert answer.json()["job"]["id"] == job["id"]
    assert time.monotonic() - begin >= len(answer.content) / 1000 * 0.9


@pytest.mark.parametrize(
    ("kind", "status", "content_type"),
    [
        ("not_found", 404, "text/plain; charset=utf-8"),
        ("wrong_type", 200, "text/html; charset=utf-8"),
        ("not_video", 200, "video/mp4"),
        ("empty", 200, "video/mp4"),
        ("redirect", 302, None),
        ("oversized", 200, "video/mp4"),
    ],
)
def test_bad_output(client, submit, poll, rules, clock, kind, status, content_type):
    job = submit()
    clock.now += 10
    url = poll(job)["outputs"][0]["url"]
    rules({"behaviour": "bad_output", "kind": kind, "count": 1, "bytes": 300_000})
    answer = client.get(url, follow_redirects=False)
    assert (answer.status_code, answer.headers.get("content-type")) == (status, content_type)
    if kind == "redirect":
        assert answer.headers["location"] == "http://169.254.169.254/latest/meta-data/"
    if kind == "oversized":
        assert len(answer.content) == int(answer.headers["content-length"]) == 300_000
    if kind in ("not_video", "empty"):
        assert b"ftyp" not in answer.content
    assert client.get(url).content[4:8] == b"ftyp"


def test_bad_output_truncated_and_undeclared_size(client, submit, poll, rules, clock):
    job = submit()
    clock.now += 10
    url = poll(job)["outputs"][0]["url"]
    rules({"behaviour": "bad_output", "kind": "truncated"})
    with pytest.raises(ConnectionAbortedError):
        client.get(url)
    rules(
        {"behaviour": "bad_output", "kind": "oversized", "bytes": 200_000, "declare_length": False}
    )
    answer = client.get(url)
    assert len(answer.content) == 200_000
    assert "content-length" not in answer.headers


def test_require_auth_can_be_switched_off(client: TestClient, rules):
    rules(require_auth=False)
    answer = client.post("/v1/jobs", json=BODY, headers={"Authorization": ""})
    assert answer.status_code == 201


@pytest.mark.parametrize("fault", [Dripped, Flood])
async def test_long_answer_ends_when_the_caller_leaves(fault):
    answer = (
        Dripped(Response(b"x" * 1000), bytes_per_second=1)
        if fault is Dripped
        else Flood("video/mp4", 10**15, prefix=b"", suffix=b"", declare_length=True)
    )
    sent = []

    async def receive():
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    await answer({}, receive, send)
    assert len(sent) < 100
