"""The order of refusals, pair by pair (contract §0.9)."""

from collections.abc import Awaitable, Callable

import pytest

from tests.unit.apiserver.gateway import Answer, Gateway, body, call

Step = Callable[[Gateway], Awaitable[Answer]]


async def _bad_method(gateway: Gateway) -> Answer:
    return await call(gateway.app, "PUT", "/api/v1/sim/reference_to_video")


async def test_method_before_maintenance() -> None:
    assert (await _bad_method(Gateway(maintenance=True))).status == 405


async def test_route_before_maintenance() -> None:
    answer = await Gateway(maintenance=True).create(path="/api/v1/nobody/reference_to_video")
    assert answer.status == 404


async def test_maintenance_before_credential() -> None:
    gateway = Gateway(maintenance=True)
    answer = await gateway.create(key="nonsense")
    assert answer.status == 503
    assert set(answer.json) == {"error"}
    assert 1 <= int(answer.headers["retry-after"]) <= 120
    assert not any(name.startswith("x-ratelimit") for name in answer.headers)


async def test_maintenance_leaves_reads_alone() -> None:
    gateway = Gateway(maintenance=True)
    gateway.put_task("task_mine")
    assert (await gateway.poll("task_mine")).status == 200
    assert (await gateway.get("/api/v1/me")).status == 200


async def test_credential_before_rate_and_body(gateway: Gateway) -> None:
    gateway.put_account("demo", requestsPerMinute=1)
    await gateway.create()
    answer = await gateway.create(b"{", key="nonsense")
    assert answer.status == 401
    assert not any(name.startswith("x-ratelimit") for name in answer.headers)


async def test_class_before_rate_and_body(gateway: Gateway) -> None:
    gateway.put_account("demo", requestsPerMinute=1)
    await gateway.create()
    manager = gateway.put_key("demo", "Management")
    assert (await gateway.create(b"{", key=manager)).status == 403


@pytest.mark.parametrize(
    ("content", "content_type"),
    [
        (b"x", "text/plain"),
        (b"x" * (1024 * 1024 + 1), "application/json"),
        (b"{", "application/json"),
    ],
)
async def test_rate_before_type_size_and_body(
    gateway: Gateway, content: bytes, content_type: str
) -> None:
    gateway.put_account("demo", requestsPerMinute=1)
    await gateway.create()
    assert (await gateway.create(content, content_type=content_type)).status == 429


async def test_rate_before_replay(gateway: Gateway) -> None:
    gateway.put_account("demo", requestsPerMinute=1)
    assert (await gateway.create(idempotency_key="k")).status == 202
    assert (await gateway.create(idempotency_key="k")).status == 429


async def test_type_before_size_before_body(gateway: Gateway) -> None:
    huge = b"x" * (1024 * 1024 + 1)
    assert (await gateway.create(huge, content_type="text/plain")).status == 415
    assert (await gateway.create(huge)).status == 413


async def test_body_before_replay_conflict(gateway: Gateway) -> None:
    await gateway.create(idempotency_key="k")
    assert (await gateway.create(body(prompt=""), idempotency_key="k")).status == 400


async def test_replay_before_conflict_with_a_changed_model(gateway: Gateway) -> None:
    sent = body(output_resolution="1080p")
    first = await gateway.create(sent, idempotency_key="k")
    gateway.put_model(fields=[{"name": "output_resolution", "allowed": ["720p"]}])
    again = await gateway.create(sent, idempotency_key="k")
    assert again.status == 202
    assert again.json == {**first.json, "task_replayed": True}
    assert (await gateway.create(sent, idempotency_key="new")).status == 409


async def test_replay_before_unknown_model(gateway: Gateway) -> None:
    gateway.put_model("other")
    sent = body(model="other")
    await gateway.create(sent, idempotency_key="k")
    gateway.kube.remove("gatewaymodels", "other")
    assert (await gateway.create(sent, idempotency_key="k")).json["task_replayed"] is True
    assert (await gateway.create(sent, idempotency_key="new")).status == 400


async def test_replay_and_its_conflict_before_balance(gateway: Gateway) -> None:
    gateway.put_account("demo", funds={"paidMicros": 500_000})
    assert (await gateway.create(idempotency_key="k")).status == 202
    assert (await gateway.create(idempotency_key="k")).json["task_replayed"] is True
    assert (await gateway.create(body(prompt="b"), idempotency_key="k")).status == 409
    assert (await gateway.create(body(prompt="b"), idempotency_key="new")).status == 402


async def test_rate_and_body_before_restrictions(gateway: Gateway) -> None:
    key = gateway.put_key("demo", allowedModels=[])
    assert (await gateway.create(body(prompt=""), key=key)).status == 400
    assert (await gateway.create(body(model="nothing"), key=key)).status == 400
    assert (await gateway.create(key=key)).status == 403
    gateway.put_account("demo", requestsPerMinute=1)
    assert (await gateway.create(key=key)).status == 429


async def test_replay_and_its_conflict_before_restrictions(gateway: Gateway) -> None:
    first = await gateway.create(idempotency_key="k")
    gateway.put_guardrail("grd-a", gateway.key, allowedModels=[])
    again = await gateway.create(idempotency_key="k")
    assert again.status == 202
    assert again.json == {**first.json, "task_replayed": True}
    assert (await gateway.create(body(prompt="b"), idempotency_key="k")).status == 409
    assert (await gateway.create(idempotency_key="new")).status == 403


async def test_restrictions_before_model_conflict_and_balance(gateway: Gateway) -> None:
    gateway.put_account("demo", funds={"paidMicros": 0})
    gateway.put_model(fields=[{"name": "audio", "supported": False}])
    key = gateway.put_key("demo", allowedModels=[])
    assert (await gateway.create(body(audio=True), key=key)).status == 403
    assert (await gateway.create(body(audio=True))).status == 409


async def test_model_conflict_before_balance(gateway: Gateway) -> None:
    gateway.put_account("demo", funds={"paidMicros": 0})
    gateway.put_model(fields=[{"name": "audio", "supported": False}])
    assert (await gateway.create(body(audio=True))).status == 409
    assert (await gateway.create()).status == 402


async def test_balance_covers_the_quote_to_the_micro(gateway: Gateway) -> None:
    gateway.put_account("demo", funds={"paidMicros": 499_999})
    answer = await gateway.create()
    assert answer.status == 402
    assert set(answer.json) == {"error"}
    assert gateway.task_count() == 0
    gateway.put_account("demo", funds={"paidMicros": 499_999, "bonusMicros": 1})
    assert (await gateway.create()).status == 202
    assert (await gateway.create()).status == 402


async def test_unlimited_account_needs_no_balance(gateway: Gateway) -> None:
    gateway.put_account("demo", funds={"paidMicros": 0}, unlimited=True)
    assert (await gateway.create()).status == 202
    assert await gateway.held() == 500_000
