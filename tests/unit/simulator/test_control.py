"""The control API: which requests a rule strikes, what is refused, what the history shows."""

import pytest
from starlette.testclient import TestClient

from gateway_simulator.app import create_app

BODY = {"model": "q4", "prompt": "a cat"}


def statuses(client, count, prompt="a cat"):
    body = {**BODY, "prompt": prompt}
    return [client.post("/v1/jobs", json=body).status_code for _ in range(count)]


def test_count_limits_a_rule_to_the_next_requests(client, rules):
    rules({"behaviour": "status", "status": 500, "count": 2})
    assert statuses(client, 4) == [500, 500, 201, 201]


def test_rules_follow_one_another_in_order(client, rules):
    rules(
        {"behaviour": "status", "status": 429, "count": 1},
        {"behaviour": "status", "status": 500, "count": 1},
    )
    assert statuses(client, 3) == [429, 500, 201]


def test_prompt_contains_also_picks_polls(client, submit, rules):
    cat, dog = submit("a cat"), submit("a dog")
    rules({"behaviour": "status", "status": 500, "match": {"prompt_contains": "dog"}})
    assert client.get(f"/v1/jobs/{cat['id']}").status_code == 200
    assert client.get(f"/v1/jobs/{dog['id']}").status_code == 500
    assert client.get("/v1/jobs/job_none").status_code == 404


def test_probability_strikes_a_part_and_a_seed_repeats_it(client, rules):
    rule = {"behaviour": "status", "status": 500, "probability": 0.5}
    runs = []
    for _ in range(2):
        rules(rule, seed=7)
        runs.append(statuses(client, 40))
    assert runs[0] == runs[1]
    assert 5 < runs[0].count(500) < 35


def test_rules_in_force_are_shown_with_how_often_they_applied(client, rules):
    rules({"behaviour": "status", "status": 500, "count": 3, "match": {"on": "submit"}})
    statuses(client, 2)
    [rule] = client.get("/control").json()["rules"]
    assert (rule["behaviour"], rule["count"], rule["applied"]) == ("status", 3, 2)
    assert rule["match"] == {"on": "submit", "prompt_contains": None, "header": None}


def test_delete_resets(client, rules):
    rules({"behaviour": "status", "status": 500}, require_auth=False)
    assert client.delete("/control").status_code == 204
    assert client.get("/control").json() == {"require_auth": True, "seed": None, "rules": []}
    assert statuses(client, 1) == [201]


@pytest.mark.parametrize(
    "document",
    [
        {"rule": []},
        {"rules": [{}]},
        {"rules": [{"behaviour": "explode"}]},
        {"rules": [{"behaviour": "stall", "seconds": 3}]},
        {"rules": [{"behaviour": "stall", "probability": 1.5}]},
        {"rules": [{"behaviour": "stall", "probability": "0.5"}]},
        {"rules": [{"behaviour": "stall", "count": 0}]},
        {"rules": [{"behaviour": "stall", "match": {"on": "poll"}}]},
        {"rules": [{"behaviour": "stall", "match": {"prompt": "x"}}]},
        {"rules": [{"behaviour": "nonsense", "kind": "html", "match": {"on": "output"}}]},
        {"rules": [{"behaviour": "status", "status": 200}]},
        {"rules": [{"behaviour": "status"}]},
        {"rules": [{"behaviour": "status", "status": 500, "retry_after": "a\r\nb"}]},
        {"rules": [{"behaviour": "hang"}]},
        {"rules": [{"behaviour": "drop", "when": "later"}]},
        {"rules": [{"behaviour": "seconds", "seconds": "9-3"}]},
        {"rules": [{"behaviour": "seconds", "seconds": "nan"}]},
        {"rules": [{"behaviour": "seconds", "seconds": True}]},
        {"rules": [{"behaviour": "slow", "bytes_per_second": 0}]},
        [],
    ],
)
def test_bad_document_is_400_and_changes_nothing(client, rules, document):
    rules({"behaviour": "fail"})
    before = client.get("/control").json()
    answer = client.put("/control", json=document)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_control"
    assert client.get("/control").json() == before


def test_refusal_names_the_field(client):
    document = {"rules": [{"behaviour": "fail", "probability": 2}]}
    message = client.put("/control", json=document).json()["error"]["message"]
    assert message.startswith("rules.0.fail.probability: ")


def test_history_tells_jobs_from_replays_and_refusals(client, submit, rules):
    first = submit("x" * 100, key="k", client_reference="ref")
    submit("x" * 100, key="k", client_reference="ref")
    rules({"behaviour": "status", "status": 500})
    client.post("/v1/jobs", json=BODY)
    client.delete("/control")
    client.get(f"/v1/jobs/{first['id']}")
    client.post(f"/v1/jobs/{first['id']}/cancel")
    client.post(f"/v1/jobs/{first['id']}/cancel")
    history = client.get("/control/history").json()
    at = "2027-01-15T08:00:00.000Z"
    assert history["submissions"] == [
        {
            "at": at,
            "idempotency_key": key,
            "client_reference": reference,
            "job_id": job_id,
            "replay": replay,
            "prompt_prefix": prompt,
        }
        for key, reference, job_id, replay, prompt in [
            ("k", "ref", first["id"], False, "x" * 80),
            ("k", "ref", first["id"], True, "x" * 80),
            (None, None, None, None, "a cat"),
        ]
    ]
    assert (history["jobs"], history["polls"], history["peak_requests"]) == (1, 1, 1)
    assert history["cancels"] == [
        {"at": at, "job_id": first["id"], "cancelled": True},
        {"at": at, "job_id": first["id"], "cancelled": False},
    ]


def test_history_can_be_cleared_and_the_jobs_stay(client, submit, poll):
    job = submit()
    assert client.delete("/control/history").status_code == 204
    assert client.get("/control/history").json() == {
        "submissions": [],
        "jobs": 0,
        "polls": 0,
        "cancels": [],
        "moderations": {"calls": 0, "answered": 0, "inputs": 0},
        "generations": {"calls": 0, "completed": 0, "aborted": 0},
        "peak_requests": 0,
    }
    assert poll(job)["id"] == job["id"]


def test_jobs_are_listed_with_their_polls(client, submit, poll, clock):
    job = submit(key="k", client_reference="x")
    submit(client_reference="y")
    poll(job)
    clock.now += 1
    poll(job)
    [listed] = client.get("/control/jobs?client_reference=x").json()["jobs"]
    assert (listed["id"], listed["idempotency_key"], listed["polls"]) == (job["id"], "k", 2)
    assert listed["poll_times"] == ["2027-01-15T08:00:00.000Z", "2027-01-15T08:00:01.000Z"]
    assert len(client.get("/control/jobs").json()["jobs"]) == 2


@pytest.mark.parametrize(
    ("peer", "status"),
    [
        ("127.0.0.9", 200),
        ("::1", 200),
        ("::ffff:127.0.0.1", 200),
        ("10.0.0.7", 403),
        ("::ffff:10.0.0.7", 403),
        ("nobody", 403),
    ],
)
def test_control_answers_the_same_machine_only(settings, clock, peer, status):
    client = TestClient(create_app(settings, clock), client=(peer, 1))
    for path in ("/control", "/control/history", "/control/jobs"):
        assert client.get(path).status_code == status
