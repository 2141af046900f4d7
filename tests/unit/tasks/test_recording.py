"""Creates whose outcome is unknown (contract §2.1: 503, 504; I9)."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from gateway_core.api.resource import Object
from gateway_core.kube.errors import (
    AlreadyExists,
    KubernetesUnavailable,
    RequestRejected,
    WriteOutcomeUnknown,
)
from tests.fakes.kubernetes import Fault
from tests.unit.apiserver.gateway import Gateway, body


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway_core.kube.retries.GIVE_UP_SECONDS", 0.3)
    monkeypatch.setattr("gateway_core.kube.retries.REFUSE_SECONDS", 0.1)


def _lost(count: int, *, applied: bool) -> list[Fault]:
    return [Fault(WriteOutcomeUnknown("cut"), applied=applied) for _ in range(count)]


@pytest.mark.parametrize("key", [None, "k"])
async def test_create_with_a_lost_response_is_found_again(
    gateway: Gateway, key: str | None
) -> None:
    gateway.kube.order_faults("create", *_lost(1, applied=True))
    answer = await gateway.create(idempotency_key=key)
    assert answer.status == 202
    assert "task_replayed" not in answer.json
    assert gateway.task_count() == 1


async def test_create_that_never_arrived_is_sent_again(gateway: Gateway) -> None:
    gateway.kube.order_faults("create", *_lost(2, applied=False))
    assert (await gateway.create()).status == 202
    assert gateway.task_count() == 1


@pytest.mark.usefixtures("hurry")
class TestGivingUp:
    async def test_unknown_outcome_is_504_and_the_hold_stays(self, gateway: Gateway) -> None:
        gateway.kube.order_faults("create", *_lost(50, applied=False))
        answer = await gateway.create(idempotency_key="k")
        assert answer.status == 504
        assert set(answer.json) == {"error"}
        assert answer.headers["x-task-id"].startswith("task_")
        assert "x-ratelimit-limit-rpm" in answer.headers
        assert await gateway.held() == 500_000

    async def test_retry_with_the_key_finds_the_task(self, gateway: Gateway) -> None:
        gateway.kube.order_faults("create", *_lost(1, applied=True))
        failing = gateway.kube.get

        async def fail(plural: str, name: str) -> Object:
            if plural == "gatewaytasks" and gateway.task_count():
                raise KubernetesUnavailable("x")
            return await failing(plural, name)

        gateway.kube.get = fail  # type: ignore[method-assign]
        answer = await gateway.create(idempotency_key="k")
        assert answer.status == 504
        gateway.kube.get = failing  # type: ignore[method-assign]
        again = await gateway.create(idempotency_key="k")
        assert again.json == {
            "id": answer.headers["x-task-id"],
            "status": "processing",
            "task_replayed": True,
        }

    async def test_hanging_create_is_504(self, gateway: Gateway) -> None:
        async def hang(plural: str, obj: Mapping[str, Any]) -> Object:
            await asyncio.Event().wait()
            raise AssertionError

        gateway.kube.create = hang  # type: ignore[method-assign]
        assert (await gateway.create()).status == 504

    async def test_create_without_a_write_is_503_and_releases_its_hold(
        self, gateway: Gateway
    ) -> None:
        gateway.kube.order_faults("create", *[Fault(KubernetesUnavailable("x"))] * 50)
        answer = await gateway.create()
        assert answer.status == 503
        assert 1 <= int(answer.headers["retry-after"]) <= 120
        assert "x-task-id" not in answer.headers
        assert gateway.task_count() == 0
        assert await gateway.held() == 0

    async def test_outcome_once_unknown_stays_unknown(self, gateway: Gateway) -> None:
        gateway.kube.order_faults("create", *_lost(1, applied=False))
        gateway.kube.order_faults("create", *[Fault(KubernetesUnavailable("x"))] * 50)
        assert (await gateway.create()).status == 504
        assert await gateway.held() == 500_000

    async def test_loser_that_cannot_see_the_winner_is_503(self, gateway: Gateway) -> None:
        first = await gateway.create(idempotency_key="k")
        obj = gateway.task_object(first.json["id"])

        async def refuse(plural: str, obj: Mapping[str, Any]) -> Object:
            raise AlreadyExists("k")

        gateway.kube.remove("gatewaytasks", obj["metadata"]["name"])
        gateway.kube.create = refuse  # type: ignore[method-assign]
        answer = await gateway.create(idempotency_key="k")
        assert answer.status == 503
        assert answer.headers["retry-after"] == "1"
        # the hold is the winner's as well
        assert await gateway.held() == 500_000


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("applied", [False, True])
async def test_refusal_after_a_lost_response_is_504_and_the_hold_stays(
    gateway: Gateway, key: str | None, applied: bool
) -> None:
    """The first may have landed, and fill the quota that the second is refused for."""
    create, asked = gateway.kube.create, 0

    async def refuse(plural: str, obj: Mapping[str, Any]) -> Object:
        nonlocal asked
        asked += 1
        if asked > 1:
            raise RequestRejected("a webhook's own quota")
        if applied:
            await create(plural, obj)
        raise WriteOutcomeUnknown("cut")

    gateway.kube.create = refuse  # type: ignore[method-assign]
    answer = await gateway.create(idempotency_key=key)
    assert answer.status == 504
    assert gateway.task_count() == applied
    assert await gateway.held() == 500_000


async def test_short_outage_is_bridged(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway_core.kube.retries.REFUSE_SECONDS", 10.0)
    gateway.kube.order_faults("create", *[Fault(KubernetesUnavailable("x"))] * 2)
    assert (await gateway.create()).status == 202


async def test_rejected_object_is_500_and_holds_nothing(gateway: Gateway) -> None:
    gateway.kube.order_faults("create", Fault(RequestRejected("spec.request: secret detail")))
    answer = await gateway.create(body())
    assert answer.status == 500
    assert b"secret" not in answer.body
    assert await gateway.held() == 0
