"""Admission of paid calls: accounts replaced meanwhile, recent rejections, counts of outcomes."""

import asyncio
from typing import Any, cast

import pytest
from starlette.requests import ClientDisconnect

from gateway_apiserver.endpoints import Call, count_outcome
from gateway_core.api.errors import Forbidden
from gateway_core.api.resource import Object
from gateway_web.context import RequestContext
from gateway_web.responses import Response
from tests.unit.apiserver.gateway import Gateway


async def test_call_of_a_deleted_account_is_not_paid_by_its_successor(gateway: Gateway) -> None:
    get, account = gateway.kube.get, gateway.kube.find("gatewayaccounts", "demo")
    assert account is not None

    async def replace_account(plural: str, name: str) -> Object:
        gateway.kube.remove("gatewayaccounts", "demo")
        gateway.kube.put("gatewayaccounts", {"metadata": {"name": "demo"}, "spec": account["spec"]})
        gateway.kube.get = get  # type: ignore[method-assign]
        return await get(plural, name)

    gateway.kube.get = replace_account  # type: ignore[method-assign]
    # a keyed call looks for its task between authentication and reservation
    assert (await gateway.create(idempotency_key="k")).status == 401
    assert gateway.task_count() == 0


async def test_rejection_of_one_key_does_not_reject_another_unasked(gateway: Gateway) -> None:
    slow = gateway.put_key("demo", requestsPerMinute=1)
    assert [(await gateway.create(key=slow)).status for _ in range(3)] == [202, 429, 429]
    assert (await gateway.create()).status == 202


async def test_raised_limit_is_noticed_by_the_next_call(gateway: Gateway) -> None:
    gateway.put_account("demo", requestsPerMinute=1)
    assert [(await gateway.create()).status for _ in range(2)] == [202, 429]
    gateway.put_account("demo", requestsPerMinute=3)
    answers = [await gateway.create() for _ in range(3)]
    assert [answer.status for answer in answers] == [202, 202, 429]
    assert [answer.headers["x-ratelimit-remaining-rpm"] for answer in answers] == ["1", "0", "0"]
    gateway.counters.now += 61
    assert (await gateway.create()).headers["x-ratelimit-remaining-rpm"] == "2"


class Outcomes:
    """Counts paid calls."""

    def __init__(self) -> None:
        self.counted: list[tuple[str, str]] = []

    def count_admission(self, surface: str, outcome: str) -> None:
        self.counted.append((surface, outcome))


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Forbidden("no"), Forbidden("no").code),
        (ClientDisconnect(), "client_gone"),
        (ZeroDivisionError(), "internal_error"),
        (asyncio.CancelledError(), "cut_short"),
    ],
)
async def test_paid_call_is_counted_once_by_surface_and_outcome(
    error: BaseException, outcome: str
) -> None:
    counter, context = Outcomes(), RequestContext("req_x")
    context.route = "llm_chat"

    async def fail(_: Call) -> Response:
        raise error

    async def succeed(call: Call) -> Response:
        return Response(200, b"{}")

    call = Call({"headers": []}, cast(Any, None), cast(Any, None), context)
    with pytest.raises(type(error)):
        await count_outcome(fail, call, counter)
    assert counter.counted == [("llm", outcome)]
    await count_outcome(succeed, call, counter)
    assert counter.counted == [("llm", outcome), ("llm", "accepted")]
