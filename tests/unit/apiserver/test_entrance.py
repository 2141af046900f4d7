"""The way in of every paid call, with a plan that is no task's: what other surfaces rely on."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from starlette.requests import ClientDisconnect

from gateway_apiserver.admission.admission import Admission, Payer
from gateway_apiserver.admission.authentication import Authenticator
from gateway_apiserver.admission.intake import Intake
from gateway_apiserver.admission.policies import PolicyView
from gateway_apiserver.admission.rates import RateLimiter
from gateway_apiserver.admission.read_through import ReadThrough
from gateway_apiserver.context import RequestContext
from gateway_apiserver.failpoints import Failpoints
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
from gateway_core.billing.journal_reader import Backlog
from gateway_core.billing.ledger import Rebuilder
from tests.unit.apiserver.gateway import PEPPERS, Gateway

COST = 400_000


@dataclass
class Completion:
    """The plan of a call of a model that answers at once."""

    hold: Hold | None
    model: str = "chat"


class Surface:
    """A surface of its own on the gateway's parts."""

    def __init__(self, gateway: Gateway, *, maintenance: bool = False) -> None:
        self.gateway = gateway
        self.trace = RequestContext("req_x")
        self.plans = 0
        self.counted: list[tuple[str, str]] = []
        records = gateway.records
        tables = (
            (gateway.keys, "gatewaykeys"),
            (gateway.accounts, "gatewayaccounts"),
            (gateway.users, "gatewayusers"),
        )
        keys, accounts, users = (ReadThrough(table, records, kind) for table, kind in tables)
        rebuild = Rebuilder(records, Backlog(gateway.store), gateway.counters).rebuild
        self.entrance = Admission(
            Authenticator(keys, accounts, users, PEPPERS),
            PolicyView(gateway.keys, gateway.guardrails, records),
            RateLimiter(gateway.counters, rebuild),
            Failpoints(""),
            self,
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
        self.trace.headers.clear()

        async def plan(payer: Payer) -> Completion:
            self.plans += 1
            payer.policy.check("llm", "chat")
            if refuse is not None:
                raise refuse()
            return Completion(None if cost is None else payer.make_hold("call-1", cost))

        headers = [(b"authorization", f"Bearer {key or self.gateway.key}".encode())]
        with self.entrance.decide(self.trace):
            return await self.entrance.enter(headers, self.trace, plan)

    def count_admission(self, surface: str, outcome: str) -> None:
        """Takes in what the entrance counts."""
        self.counted.append((surface, outcome))

    @property
    def told(self) -> set[bytes]:
        """The names of the headers that the call has earned."""
        return {name for name, _ in self.trace.headers}


@pytest.fixture
def surface(gateway: Gateway) -> Surface:
    return Surface(gateway)


async def test_it_tells_who_pays_and_holds_the_money(surface: Surface) -> None:
    surface.gateway.put_guardrail("grd-a", surface.gateway.key)
    payer, plan = await surface.call()
    assert plan.model == "chat"
    assert payer.account.name == surface.trace.account == "demo"
    assert b"x-ratelimit-remaining-rpm" in surface.told
    assert await surface.gateway.held() == COST
    budgets = [Budget(subject) for subject in payer.policy.subjects]
    states = await surface.gateway.counters.read_budgets("demo", budgets)
    assert [state.held for state in states] == [COST, COST]
    assert plan.hold is not None
    await surface.entrance.release(payer, plan.hold)
    assert await surface.gateway.held() == 0


async def test_what_costs_nothing_holds_nothing(surface: Surface) -> None:
    surface.gateway.put_account("demo", funds={"paidMicros": 0})
    surface.gateway.change_key(surface.gateway.key, limit={"micros": 0, "window": "1h"})
    _, plan = await surface.call(cost=None)
    assert plan.hold is None
    assert b"x-ratelimit-remaining-rpm" in surface.told


async def test_a_refusal_of_the_plan_is_counted_and_told(surface: Surface) -> None:
    surface.gateway.put_account("demo", requestsPerMinute=2)
    for _ in range(2):
        with pytest.raises(NotFound):
            await surface.call(refuse=lambda: NotFound("No such model."))
        assert b"x-ratelimit-remaining-rpm" in surface.told
    with pytest.raises(RateLimited):
        await surface.call(refuse=lambda: NotFound("No such model."))
    assert surface.told == set()


async def test_nothing_is_planned_for_who_may_not_call(surface: Surface) -> None:
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
    assert surface.plans == 0


async def test_credit_comes_before_balance_and_after_the_plan(surface: Surface) -> None:
    gateway = surface.gateway
    gateway.put_account("demo", funds={"paidMicros": 0})
    with pytest.raises(InsufficientBalance):
        await surface.call()
    gateway.change_key(gateway.key, limit={"micros": COST - 1, "window": "1h"})
    with pytest.raises(CreditLimitExceeded):
        await surface.call()
    assert surface.told == set()
    gateway.put_guardrail("grd-a", gateway.key, deniedModels=["chat"])
    with pytest.raises(Forbidden):
        await surface.call()


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Forbidden("no"), Forbidden("no").code),
        (ClientDisconnect(), "client_gone"),
        (ZeroDivisionError(), "internal_error"),
        (asyncio.CancelledError(), "cut_short"),
    ],
)
async def test_every_call_is_counted_once_by_its_surface_and_what_became_of_it(
    surface: Surface, error: BaseException, outcome: str
) -> None:
    surface.trace.route = "llm_chat"
    with pytest.raises(type(error)):
        await surface.call(refuse=lambda: error)
    assert surface.counted == [("llm", outcome)]
    await surface.call()
    assert surface.counted == [("llm", outcome), ("llm", "accepted")]


async def test_who_was_refused_for_his_rate_is_not_planned_for_again(surface: Surface) -> None:
    gateway = surface.gateway
    gateway.put_account("demo", requestsPerMinute=2)
    other = gateway.put_key("demo", requestsPerMinute=1)
    for _ in range(2):
        await surface.call()
    for _ in range(20):
        with pytest.raises(RateLimited) as limited:
            await surface.call()
    assert limited.value.retry_after == 60
    assert surface.plans == 3
    with pytest.raises(RateLimited):
        await surface.call(other)
    assert surface.plans == 4, "another key's budgets may say something else"


async def test_room_that_comes_early_is_found_by_the_next_call(surface: Surface) -> None:
    gateway = surface.gateway
    gateway.put_account("demo", requestsPerMinute=1)
    await surface.call()
    with pytest.raises(RateLimited):
        await surface.call()
    gateway.put_account("demo", requestsPerMinute=3)
    for left in (b"1", b"0"):
        await surface.call()
        assert (b"x-ratelimit-remaining-rpm", left) in surface.trace.headers
    with pytest.raises(RateLimited):
        await surface.call()
    gateway.counters.now += 61
    await surface.call()
    assert (b"x-ratelimit-remaining-rpm", b"2") in surface.trace.headers
