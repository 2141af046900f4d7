"""Moderations in process: what is said of which input, what is refused, what is remembered."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway_simulator.moderations import (
    CATEGORIES,
    FLAGGING,
    SEEN_IN_IMAGES,
    InvalidInput,
    read_request,
)
from gateway_simulator.moderations import judge as judge_request

PATH = "/v1/moderations"


def moderate(client, given="a cat", **headers):
    return client.post(PATH, json={"model": "m", "input": given}, headers=headers)


def judge(client, given):
    answer = moderate(client, given)
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]


def image(url):
    return {"type": "image_url", "image_url": {"url": url}}


def text(words):
    return {"type": "text", "text": words}


def test_answer_has_the_shape_of_the_dialect(client):
    answer = moderate(client).json()
    assert answer["id"].startswith("modr-")
    assert answer["model"] == "m"
    [result] = answer["results"]
    assert result["flagged"] is False
    for words in ("categories", "category_scores", "category_applied_input_types"):
        assert set(result[words]) == set(CATEGORIES)
    assert all(0 <= score < 0.05 for score in result["category_scores"].values())
    assert all(kinds == ["text"] for kinds in result["category_applied_input_types"].values())


def test_same_input_has_the_same_scores_and_another_has_others(client):
    first, again, other = judge(client, ["a cat", "a cat", "a dog"])
    assert first == again
    assert first["category_scores"] != other["category_scores"]


@pytest.mark.parametrize("word", FLAGGING)
def test_word_flags_its_categories(client, word):
    [result] = judge(client, f"This is {word.upper()}, they said.")
    assert result["flagged"] is True
    struck = {category for category, is_struck in result["categories"].items() if is_struck}
    assert struck == set(FLAGGING[word])
    assert all(result["category_scores"][category] >= 0.8 for category in struck)


def test_part_of_a_word_flags_nothing(client):
    assert judge(client, "attacking bombastic insults")[0]["flagged"] is False


def test_list_of_parts_has_one_result(client):
    [result] = judge(client, [text("an insult"), image("https://example.com/gore.png")])
    assert result["categories"]["harassment"] is True
    assert result["categories"]["violence/graphic"] is True
    applied = result["category_applied_input_types"]
    assert applied["hate"] == ["text"]
    assert all(applied[category] == ["text", "image"] for category in SEEN_IN_IMAGES)


def test_image_alone_is_judged_by_the_categories_of_images(client):
    [result] = judge(client, [image("https://example.com/slur-and-nudity.png")])
    assert result["categories"]["sexual"] is True
    assert result["categories"]["hate"] is False
    applied = result["category_applied_input_types"]
    assert {category for category in applied if applied[category]} == SEEN_IN_IMAGES


@pytest.mark.parametrize(
    ("raw", "param", "code"),
    [
        (b"{", None, "invalid_json"),
        (b"[]", None, "invalid_json"),
        (b"{}", "input", "missing_required_parameter"),
        (b'{"input": ""}', "input", "invalid_value"),
        (b'{"input": []}', "input", "invalid_value"),
        (b'{"input": 5}', "input", "invalid_type"),
        (b'{"input": [{"type": "audio"}]}', "input", "invalid_value"),
        (b'{"input": ["a", {"type": "text", "text": "b"}]}', "input", "invalid_value"),
        (b'{"input": "a", "model": 3}', "model", "invalid_type"),
    ],
)
def test_bad_body_is_refused_in_the_dialect(client, raw, param, code):
    answer = client.post(PATH, content=raw)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)
    assert client.get("/control/history").json()["moderations"]["calls"] == 0


@given(st.binary(max_size=60))
@example(b'{"input": "\\ud800 a cat"}')
@example(b'{"input": ["a", 5]}')
@example(b'{"input": [{"type": "text", "text": "a"}]}')
def test_any_bytes_are_read_or_refused(raw):
    try:
        request = read_request(raw)
    except InvalidInput:
        return
    assert len(judge_request(request)["results"]) == len(request.inputs)


def test_credential_is_checked(client):
    answer = client.post(PATH, json={"input": "x"}, headers={"Authorization": "Bearer no"})
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"


def test_status_rule_answers_in_the_dialect(client, rules):
    rules(
        {"behaviour": "status", "status": 429, "retry_after": 3, "match": {"prompt_contains": "x"}},
        {"behaviour": "status", "status": 503, "match": {"on": "moderate"}},
    )
    limited = moderate(client, ["a", "xyz"])
    assert (limited.status_code, limited.headers["retry-after"]) == (429, "3")
    assert limited.json()["error"]["type"] == "rate_limit_error"
    assert moderate(client, "a").json()["error"]["type"] == "server_error"
    inputs = client.get("/control/moderations").json()["inputs"]
    assert {name: (each["asked"], each["answered"]) for name, each in inputs.items()} == {
        "a": (2, 0),
        "xyz": (1, 0),
    }


def test_header_picks_the_requests(client, rules):
    header = {"name": "X-Case", "value": "7"}
    rules({"behaviour": "status", "status": 500, "match": {"header": header}})
    assert moderate(client).status_code == 200
    assert moderate(client, **{"X-Case": "8"}).status_code == 200
    assert moderate(client, **{"x-case": "7"}).status_code == 500


def test_header_picks_only_what_happens_to_the_exchange(client):
    rule = {"behaviour": "stall", "match": {"header": {"name": "X-Case"}}}
    answer = client.put("/control", json={"rules": [rule]})
    assert answer.status_code == 400
    assert "match.header" in answer.text


@pytest.mark.parametrize(
    ("kind", "missing"),
    [("input_types", "category_applied_input_types"), ("categories", "illicit")],
)
def test_incomplete_leaves_out_what_older_providers_lack(client, rules, kind, missing):
    rules({"behaviour": "incomplete", "kind": kind, "count": 1})
    [lacking] = judge(client, "a cat")
    [whole] = judge(client, "a cat")
    assert missing not in (lacking if missing in whole else lacking["categories"])


def test_incomplete_leaves_out_a_result(client, rules):
    rules({"behaviour": "incomplete", "kind": "results"})
    assert len(judge(client, ["a", "b", "c"])) == 2


def test_limit_admits_exactly_so_many_in_any_second(client, rules, clock):
    rules({"behaviour": "limit", "per_second": 3, "match": {"on": "moderate"}})
    start = clock.now
    admitted = []
    for step in range(100):
        clock.now = start + step / 20
        answer = moderate(client)
        if answer.status_code == 200:
            admitted.append(clock.now)
        else:
            assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    for moment in admitted:
        assert sum(1 for each in admitted if moment - 1 < each <= moment) <= 3
    assert len(admitted) == 15
    [rule] = client.get("/control").json()["rules"]
    assert rule["applied"] == 85


def test_limit_counts_what_it_matches(client, rules):
    rules({"behaviour": "limit", "per_second": 1, "match": {"on": "moderate"}})
    assert moderate(client).status_code == 200
    assert client.post("/v1/jobs", json={"model": "q4", "prompt": "x"}).status_code == 201
    assert moderate(client).status_code == 429


def test_history_counts_each_input(client):
    long = "long " * 100
    parts = [text("a cat"), image("https://example.com/1.png")]
    for asked in ("a cat", ["a cat", long], parts):
        moderate(client, asked)
    assert client.get("/control/history").json()["moderations"] == {
        "calls": 3,
        "answered": 3,
        "inputs": 3,
    }
    inputs = client.get("/control/moderations").json()["inputs"]
    assert inputs["a cat"]["asked"] == inputs["a cat"]["answered"] == 3
    [cut] = [name for name in inputs if name.startswith("long ")]
    assert len(cut) < 220
    often = client.get("/control/moderations?asked_at_least=2").json()["inputs"]
    assert list(often) == ["a cat"]
    found = client.get("/control/moderations?contains=1.png").json()["inputs"]
    assert list(found) == ["https://example.com/1.png"]
    assert client.get("/control/moderations?asked_at_least=x").status_code == 400
    client.delete("/control/history")
    assert client.get("/control/moderations").json() == {"inputs": {}}
