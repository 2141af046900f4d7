"""POST /v1/moderations: who is let in, what the provider is asked, what it costs, what fails."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway_apiserver.surfaces.large_bodies import MOST_AT_ONCE
from gateway_core.providers.upstream import (
    UpstreamBusy,
    UpstreamDenied,
    UpstreamError,
    UpstreamLimited,
    UpstreamRejected,
    UpstreamTimedOut,
    UpstreamUnclear,
)
from gateway_core.redis.link import CountersStale
from tests.servers.world import wait_for
from tests.unit.apiserver.gateway import PATH, Answer, Gateway, body

URL = "/v1/moderations"
MICROS = 2_000


class Scene(Gateway):
    """The gateway with a moderation model, and its journal being written."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.put_judge()
        self.put_provider("judge")
        self.running = asyncio.create_task(self.calls.run())

    def put_judge(self, name: str = "judge-model", **spec: Any) -> None:
        base = {
            "modelId": "judge",
            "service": "safety",
            "action": "moderations",
            "routes": [{"name": "main", "providerName": "judge", "upstreamModel": "omni-1"}],
            "prices": [{"perCallMicros": MICROS}],
        }
        self.kube.put("gatewaymodels", {"metadata": {"name": name}, "spec": {**base, **spec}})

    def put_provider(self, name: str) -> None:
        spec = {"type": "openai", "openai": {"baseUrl": "http://judge.example/v1"}}
        self.kube.put("gatewayproviders", {"metadata": {"name": name}, "spec": spec})

    async def judge(self, content: Any = None, *, key: str | None = None) -> Answer:
        given = {"model": "judge", "input": "a cat"} if content is None else content
        return await self.create(given, key=key, path=URL)


async def spent(scene: Scene) -> tuple[int, int]:
    """Charged and held."""
    today = datetime.now(UTC).date().isoformat()
    try:
        spending = await scene.counters.read_spending("demo", today)
    except CountersStale:
        return 0, 0  # nobody has asked for money yet
    return spending.charged, spending.held


async def test_answer_is_whole_names_the_clients_model_and_is_charged_once() -> None:
    scene = Scene()
    answer = await scene.judge({"model": "judge", "input": ["a cat", "kill"], "user": "u"})
    assert answer.status == 200, answer.body
    assert (answer.json["model"], len(answer.json["results"])) == ("judge", 2)
    assert [result["flagged"] for result in answer.json["results"]] == [False, True]
    assert answer.headers["x-ratelimit-remaining-rpm"] == "299"
    assert scene.moderation.bodies == [{"model": "omni-1", "input": ["a cat", "kill"]}]
    assert await spent(scene) == (MICROS, 0)
    (record,) = await scene.close_journal()
    assert (record.account, record.model_id, record.operation) == (
        "demo",
        "judge",
        "safety/moderations",
    )
    assert (record.micros, record.failed, record.key_name) == (
        MICROS,
        False,
        "key-" + scene.key[3:11],
    )


@pytest.mark.parametrize("default", ["", "judge"])
async def test_model_that_is_left_out_is_the_deployments(default: str) -> None:
    scene = Scene(**({"moderation_default_model": default} if default else {}))
    answer = await scene.judge({"input": "a"})
    if default:
        assert answer.json["model"] == "judge"
    else:
        error = answer.json["error"]
        refusal = (400, "missing_required_parameter", "model")
        assert (answer.status, error["code"], error["param"]) == refusal


async def test_default_model_that_does_not_exist_is_logged_once() -> None:
    scene = Scene(moderation_default_model="nosuch")
    with capture_logs() as logs:
        for _ in range(2):
            assert (await scene.judge({"input": "a"})).status == 404
        assert (await scene.judge({"input": "a", "model": "other"})).status == 404
    told = [(line["event"], line.get("model")) for line in logs if line["log_level"] == "warning"]
    assert told == [("the default model of moderations does not exist", "nosuch")]


@pytest.mark.parametrize(
    ("content", "code", "param"),
    [
        (b"{", "invalid_json", None),
        (b"[]", "invalid_type", None),
        (b'{"model":"judge","input":"\\ud800"}', "invalid_json", None),
        ({"model": "judge"}, "missing_required_parameter", "input"),
        ({"model": "judge", "input": ""}, "invalid_value", "input"),
        ({"model": 5, "input": "a"}, "invalid_type", "model"),
    ],
)
async def test_bad_body_is_counted_and_costs_nothing(content: Any, code: str, param: Any) -> None:
    scene = Scene()
    answer = await scene.judge(content)
    assert answer.status == 400
    assert set(answer.json["error"]) == {"message", "type", "param", "code"}
    assert (answer.json["error"]["code"], answer.json["error"]["param"]) == (code, param)
    assert answer.headers["x-ratelimit-remaining-rpm"] == "299"
    assert await spent(scene) == (0, 0)
    assert scene.moderation.bodies == []


async def test_unknown_model_is_404() -> None:
    scene = Scene()
    for model in ("nobody", "sim-q4-reference-to-video"):
        answer = await scene.judge({"model": model, "input": "a"})
        assert (answer.status, answer.json["error"]["code"]) == (404, "model_not_found")


async def test_moderation_model_takes_no_task() -> None:
    scene = Scene()
    for path in ("/api/v1/safety/moderations", "/api/v1/safety/moderations/task_x"):
        assert (await scene.create(body(), path=path)).status == 404
        assert (await scene.get(path)).status == 404
    assert (await scene.create(path=PATH)).status == 202


@pytest.mark.parametrize(
    ("error", "status", "code", "wait"),
    [
        (UpstreamRejected("Too long."), 400, "invalid_value", None),
        (UpstreamLimited("slow", retry_after=7), 429, "upstream_rate_limited", "7"),
        (UpstreamLimited("slow", retry_after=900), 429, "upstream_rate_limited", "120"),
        (UpstreamLimited("slow"), 429, "upstream_rate_limited", "5"),
        (UpstreamBusy("away", retry_after=2.5), 503, "service_unavailable", "3"),
        (UpstreamDenied("the key sk-1 is bad"), 502, "upstream_error", None),
        (UpstreamUnclear("HTTP 500"), 502, "upstream_error", None),
        (UpstreamTimedOut("late"), 504, "upstream_timeout", None),
    ],
)
async def test_failed_call_costs_nothing(
    error: UpstreamError, status: int, code: str, wait: str | None
) -> None:
    scene = Scene()
    scene.moderation.errors.append(error)
    answer = await scene.judge()
    assert (answer.status, answer.json["error"]["code"]) == (status, code)
    assert answer.headers.get("retry-after") == wait
    assert ("x-ratelimit-reset" in answer.headers) is (code != "upstream_rate_limited")
    assert b"sk-1" not in answer.body
    assert await spent(scene) == (0, 0)
    (record,) = await scene.close_journal()
    assert (record.micros, record.failed) == (0, True)


async def test_without_a_usable_provider_it_is_unavailable_and_free() -> None:
    scene = Scene()
    scene.put_judge(routes=[{"name": "a", "providerName": "gone", "upstreamModel": "m"}])
    answer = await scene.judge()
    assert (answer.status, answer.json["error"]["code"]) == (503, "service_unavailable")
    assert await spent(scene) == (0, 0)


async def test_next_route_is_taken_where_the_first_has_no_provider() -> None:
    scene = Scene()
    routes = [
        {"name": "a", "providerName": "gone", "upstreamModel": "m"},
        {"name": "b", "providerName": "judge", "upstreamModel": "second"},
    ]
    scene.put_judge(routes=routes)
    assert (await scene.judge()).status == 200
    assert scene.moderation.bodies[0]["model"] == "second"


async def test_ready_model_that_the_key_may_call_is_chosen_among_those_of_one_id() -> None:
    scene = Scene()
    ready = {"type": "Ready", "status": "True", "reason": "Available", "message": "ready"}
    scene.kube.put(
        "gatewaymodels",
        {
            "metadata": {"name": "zz"},
            "spec": {
                "modelId": "judge",
                "service": "other",
                "action": "moderations",
                "routes": [{"name": "a", "providerName": "judge", "upstreamModel": "ready-one"}],
                "prices": [{"perCallMicros": 1}],
            },
            "status": {"conditions": [{**ready, "lastTransitionTime": "2026-11-21T00:00:00Z"}]},
        },
    )
    await scene.judge()
    assert scene.moderation.bodies[-1]["model"] == "ready-one"
    key = scene.put_key("demo", allowedProviders=["safety"])
    await scene.judge(key=key)
    assert scene.moderation.bodies[-1]["model"] == "omni-1"


async def test_client_that_leaves_is_charged_for_an_answer() -> None:
    scene = Scene()
    scene.moderation.gate.clear()
    waiting = asyncio.create_task(scene.judge())
    await wait_for(lambda: scene.moderation.bodies)
    assert await spent(scene) == (0, MICROS)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    scene.moderation.gate.set()
    await asyncio.sleep(0)
    (record,) = await scene.close_journal()
    assert await spent(scene) == (MICROS, 0)
    assert record.micros == MICROS


async def test_drain_ends_open_calls_and_stores_records_of_ended_ones() -> None:
    scene = Scene()
    assert (await scene.judge()).status == 200
    scene.moderation.gate.clear()
    waiting = asyncio.create_task(scene.judge())
    await wait_for(lambda: len(scene.moderation.bodies) == 2)
    records = await scene.close_journal()
    assert sorted(record.micros for record in records) == [0, MICROS]
    assert scene.calls.unstored == 0
    assert await spent(scene) == (MICROS, 0)
    waiting.cancel()


async def test_image_in_the_body_is_judged_up_to_8_mib() -> None:
    scene = Scene()
    url = "data:image/png;base64," + "A" * 7_000_000
    part = {"type": "image_url", "image_url": {"url": url}}
    assert (await scene.judge({"model": "judge", "input": [part]})).status == 200
    assert scene.moderation.bodies == [{"model": "omni-1", "input": [part]}]
    answer = await scene.judge({"model": "judge", "input": [part, part]})
    assert (answer.status, answer.json["error"]["code"]) == (413, "request_too_large")


async def test_account_has_at_most_half_of_a_providers_slots() -> None:
    scene = Scene()
    scene.moderation.limit = 4
    scene.moderation.gate.clear()
    greedy = [asyncio.create_task(scene.judge()) for _ in range(5)]
    await wait_for(lambda: len(scene.moderation.bodies) == 2)
    other = asyncio.create_task(scene.judge({"input": "b", "model": "judge"}, key=scene.other_key))
    await wait_for(lambda: len(scene.moderation.bodies) == 3)
    assert [body["input"] for body in scene.moderation.bodies] == ["a cat", "a cat", "b"]
    scene.moderation.gate.set()
    answers = await asyncio.gather(*greedy, other)
    assert [answer.status for answer in answers] == [200] * 6


async def test_large_body_holds_its_slot_until_it_is_judged_though_its_client_left() -> None:
    scene = Scene()
    scene.moderation.gate.clear()
    large = {"model": "judge", "input": "x" * 300_000}
    share = MOST_AT_ONCE // 2
    leaving = [asyncio.create_task(scene.judge(large)) for _ in range(share)]
    await wait_for(lambda: len(scene.moderation.bodies) == share)
    for task in leaving:
        task.cancel()
    await asyncio.gather(*leaving, return_exceptions=True)
    further = asyncio.create_task(scene.judge(large))
    small = asyncio.create_task(scene.judge())
    await wait_for(lambda: len(scene.moderation.bodies) == share + 1)
    assert scene.moderation.bodies[-1]["input"] == "a cat"
    scene.moderation.gate.set()
    assert [answer.status for answer in await asyncio.gather(further, small)] == [200, 200]


async def test_price_lists_and_quotes_know_moderations() -> None:
    scene = Scene()
    listed = (await scene.get("/api/v1/price_schedules")).json["price_schedules"]
    (entry,) = [each for each in listed if each["action"] == "moderations"]
    assert (entry["service"], entry["model"], entry["billing_unit"]) == ("safety", "judge", "call")
    asked = {"service": "safety", "action": "moderations", "model": "judge"}
    for params in (None, {"input": "a"}):
        answer = await scene.create({**asked, "params": params}, path="/api/v1/price_quotes")
        assert answer.json["price_quote"]["reservation_amount_cents"] == 1
    bad = await scene.create({**asked, "params": {"input": 5}}, path="/api/v1/price_quotes")
    assert (bad.status, list(bad.json["errors"])) == (400, ["input"])


async def test_document_lists_models_of_moderation() -> None:
    answer = await Scene().get("/openapi.json")
    assert answer.status == 200
    schema = answer.json["paths"][URL]["post"]["requestBody"]["content"]["application/json"]
    assert schema["schema"]["properties"]["model"]["enum"] == ["judge", None]
    assert schema["schema"]["required"] == ["model", "input"]
    forms = answer.json["paths"]["/api/v1/price_quotes"]["post"]["requestBody"]["content"]
    served = forms["application/json"]["schema"]["oneOf"]
    assert {form["properties"]["action"]["const"] for form in served} == {
        "moderations",
        "reference_to_video",
    }
    assert "/api/v1/safety/moderations" not in answer.json["paths"]
