"""Admission of paid calls that are no task creates: what every surface relies on."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest
from starlette.requests import ClientDisconnect

from gateway_apiserver.failpoints import Failpoints
from gateway_apiserver.routing import Call, count_outcomes
from gateway_core.accounts.authentication import Authenticator, PolicyView
from gateway_core.admission.admission import Admission, Payer, capture
from gateway_core.admission.intake import Intake
from gateway_core.admission.rates import RateLimiter
from gateway_core.api.errors import (
    CreditLimitExceeded,
    Forbidden,
    InsufficientBalance,
    NotFound,
    RateLimited,
    Unauthenticated,
    Unavailable,
)
from gateway_core.billing.counters import Budget, Hold
from gateway_core.billing.journal_store import JournalStore
from gateway_core.billing.ledger import Rebuilder
from gateway_core.kube.read_through import ReadThrough
from gateway_web.context import RequestContext
from gateway_web.responses import Response
from tests.unit.apiserver.gateway import PEPPERS, Gateway

COST = 400_000


@dataclass
class Completion:
    """A prepared call of a model that answers at once."""

    hold: Hold | None
    model: str = "chat"


class Surface:
    """A surface of its own on the gateway's parts."""

    def __init__(self, gateway: Gateway, *, maintenance: bool = False) -> None:
        self.gateway = gateway
        self.context = RequestContext("req_x")
        self.prepared = 0
        kube = gateway.kube
        tables = (
            (gateway.keys, "gatewaykeys"),
            (gateway.accounts, "gatewayaccounts"),
            (gateway.users, "gatewayusers"),
        )
        keys, accounts, users = (ReadThrough(table, kube, kind) for table, kind in tables)
        rebuild = Rebuilder(kube, JournalStore(gateway.store), gateway.counters).rebuild
        self.admission = Admission(
            Authenticator(keys, accounts, users, PEPPERS),
            PolicyView(gateway.keys, gateway.guardrails, kube),
            RateLimiter(gateway.counters, rebuild),
            Failpoints(""),
            Intake(maintenance=maintenance),
        )

    async def call(
        self,
        key: str = "",
        *,
        cost: int | None = COST,
        refuse: Callable[[], BaseException] | None = None,
    ) -> tuple[Payer, Completion]:
        """One call; without a cost it wants no hold."""
        context = self.context = RequestContext("req_x")

        async def prepare() -> Completion:
            self.prepared += 1
            payer.policy.check("llm", "chat")
            if refuse is not None:
                raise refuse()
            return Completion(None if cost is None else payer.make_hold("call-1", cost))

        headers = [(b"authorization", f"Bearer {key or self.gateway.key}".encode())]
        payer = await self.admission.authenticate(headers, context)
        completion, problem = await capture(prepare())
        hold = None if completion is None else completion.hold
        await self.admission.reserve(payer, context, hold, problem)
        assert completion is not None
        return payer, completion

    @property
    def remaining(self) -> int | None:
        """Calls left in the rate headers of the response; None where it has none."""
        rate = self.context.rate
        return None if rate is None else rate.remaining


@pytest.fixture
def surface(gateway: Gateway) -> Surface:
    return Surface(gateway)


async def test_call_that_outlasts_its_account_is_not_one_of_the_next_of_that_name(
    surface: Surface,
) -> None:
    gateway = surface.gateway

    headers = [(b"authorization", f"Bearer {gateway.key}".encode())]
    payer = await surface.admission.authenticate(headers, surface.context)
    old = gateway.kube.find("gatewayaccounts", "demo")
    assert old is not None
    gateway.kube.remove("gatewayaccounts", "demo")
    gateway.kube.put("gatewayaccounts", {"metadata": {"name": "demo"}, "spec": old["spec"]})
    gateway.accounts.upsert(gateway.kube.find("gatewayaccounts", "demo"))
    with pytest.raises(Unauthenticated):
        await surface.admission.reserve(payer, surface.context, payer.make_hold("task-1", COST))


async def test_admission_finds_the_payer_and_holds_the_money(surface: Surface) -> None:
    surface.gateway.put_guardrail("grd-a", surface.gateway.key)
    payer, plan = await surface.call()
    assert plan.model == "chat"
    assert payer.account.name == surface.context.account == "demo"
    assert surface.remaining is not None
    assert await surface.gateway.held() == COST
    budgets = [Budget(subject) for subject in payer.policy.subjects]
    states = await surface.gateway.counters.read_budgets("demo", budgets)
    assert [state.held for state in states] == [COST, COST]
    assert plan.hold is not None
    await surface.admission.release(payer, plan.hold)
    assert await surface.gateway.held() == 0


async def test_call_without_cost_holds_nothing(surface: Surface) -> None:
    surface.gateway.put_account("demo", funds={"paidMicros": 0})
    surface.gateway.change_key(surface.gateway.key, limit={"micros": 0, "window": "1h"})
    _, plan = await surface.call(cost=None)
    assert plan.hold is None
    assert surface.remaining is not None


async def test_a_problem_of_the_call_counts_in_its_rate(surface: Surface) -> None:
    surface.gateway.put_account("demo", requestsPerMinute=2)
    for _ in range(2):
        with pytest.raises(NotFound):
            await surface.call(refuse=lambda: NotFound("No such model."))
        assert surface.remaining is not None
    with pytest.raises(RateLimited):
        await surface.call(refuse=lambda: NotFound("No such model."))
    assert surface.remaining is None


async def test_nothing_is_prepared_for_a_caller_that_may_not_call(surface: Surface) -> None:
    gateway = surface.gateway
    gateway.put_user("vera", {"demo": "viewer"})
    for key, error in [
        ("nonsense", Unauthenticated),
        (gateway.put_key("demo", "Management"), Forbidden),
        (gateway.put_key("demo", createdBy="vera"), Forbidden),
    ]:
        with pytest.raises(error):
            await surface.call(key)
    with pytest.raises(Unavailable):
        await Surface(gateway, maintenance=True).call()
    assert surface.prepared == 0


async def test_problem_before_credit_limit_before_balance(surface: Surface) -> None:
    gateway = surface.gateway
    gateway.put_account("demo", funds={"paidMicros": 0})
    with pytest.raises(InsufficientBalance):
        await surface.call()
    gateway.change_key(gateway.key, limit={"micros": COST - 1, "window": "1h"})
    with pytest.raises(CreditLimitExceeded):
        await surface.call()
    assert surface.remaining is None
    gateway.put_guardrail("grd-a", gateway.key, deniedModels=["chat"])
    with pytest.raises(Forbidden):
        await surface.call()


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
async def test_every_paid_call_is_counted_once_by_its_surface_and_outcome(
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
        await count_outcomes(fail, counter)(call)
    assert counter.counted == [("llm", outcome)]
    await count_outcomes(succeed, counter)(call)
    assert counter.counted == [("llm", outcome), ("llm", "accepted")]


async def test_rate_limited_account_is_rejected_before_its_call_is_prepared(
    surface: Surface,
) -> None:
    gateway = surface.gateway
    gateway.put_account("demo", requestsPerMinute=2)
    other = gateway.put_key("demo", requestsPerMinute=1)
    for _ in range(2):
        await surface.call()
    for _ in range(20):
        with pytest.raises(RateLimited) as limited:
            await surface.call()
    assert limited.value.retry_after == 60
    assert surface.prepared == 3
    with pytest.raises(RateLimited):
        await surface.call(other)
    assert surface.prepared == 4, "another key's budgets may say something else"


async def test_room_that_comes_early_is_found_by_the_next_call(surface: Surface) -> None:
    gateway = surface.gateway
    gateway.put_account("demo", requestsPerMinute=1)
    await surface.call()
    with pytest.raises(RateLimited):
        await surface.call()
    gateway.put_account("demo", requestsPerMinute=3)
    for left in (1, 0):
        await surface.call()
        assert surface.remaining == left
    with pytest.raises(RateLimited):
        await surface.call()
    gateway.counters.now += 61
    await surface.call()
    assert surface.remaining == 2
