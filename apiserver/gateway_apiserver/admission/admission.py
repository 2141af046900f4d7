"""What became of paid calls, counted; the surfaces have it from `entrance`."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Protocol, TypeVar

from starlette.requests import ClientDisconnect

from gateway_apiserver.admission.authentication import Authenticator, Principal
from gateway_apiserver.admission.intake import Intake
from gateway_apiserver.admission.policies import PolicyView
from gateway_apiserver.admission.projections import AccountRecord
from gateway_apiserver.admission.rates import RateLimiter, RecentRejections
from gateway_apiserver.context import Header, RequestContext
from gateway_apiserver.errors import list_rate_headers, to_gateway_error
from gateway_apiserver.failpoints import Failpoints
from gateway_apiserver.middleware.metrics import find_surface
from gateway_apiserver.tasks.recording import GIVE_UP_SECONDS, PAUSES, WinnerUndecided
from gateway_core.accounts.guardrails import Policy
from gateway_core.accounts.roles import Act
from gateway_core.api.errors import (
    CreditLimitExceeded,
    Forbidden,
    GatewayError,
    InsufficientBalance,
    RateLimited,
    Unavailable,
)
from gateway_core.api.money import to_decimal_text
from gateway_core.billing.counters import AdmissionAnswer, Hold, RateUse
from gateway_core.billing.limits import describe_limit
from gateway_core.observability.tracing import SpanKind


class DecisionCounter(Protocol):
    """What is told of each paid call."""

    def count_admission(self, surface: str, outcome: str) -> None:
        """Counts one paid call by its surface and what became of it."""
        ...


@dataclass(slots=True)
class Decision:
    """What becomes of a paid call; its surface says so in `outcome` where it knows more."""

    outcome: str = "accepted"


@contextmanager
def count_decision(counter: DecisionCounter, context: RequestContext) -> Iterator[Decision]:
    """Counts the call of `trace` once: by what is raised within, else by its decision."""
    decision = Decision()
    try:
        yield decision
    except ClientDisconnect:
        decision.outcome = "client_gone"
        raise
    except Exception as error:
        decision.outcome = to_gateway_error(error, context.request_id).code
        raise
    except BaseException:
        decision.outcome = "cut_short"
        raise
    finally:
        counter.count_admission(find_surface(context.route), decision.outcome)


@dataclass(frozen=True, slots=True)
class Payer:
    """Who calls and pays, and all that restricts the call."""

    caller: Principal
    policy: Policy

    @property
    def account(self) -> AccountRecord:
        """The account that pays."""
        return self.caller.account

    def make_hold(self, name: str, micros: int) -> Hold:
        """Money to be held for the run or call `name`, in every pool that it counts in."""
        return Hold(name, micros, self.policy.subjects)


class Plan(Protocol):
    """What is to be done with a call once it is let in."""

    @property
    def hold(self) -> Hold | None:
        """The money to be held for it; None where it costs nothing, as a replay does."""
        ...


P = TypeVar("P", bound=Plan)


class Admission:
    """Lets paid calls in, with their money held."""

    def __init__(
        self,
        authenticator: Authenticator,
        policies: PolicyView,
        gate: RateLimiter,
        failpoints: Failpoints,
        counter: DecisionCounter,
        intake: Intake,
    ) -> None:
        self._authenticator = authenticator
        self._policies = policies
        self._gate = gate
        self._failpoints = failpoints
        self._counter = counter
        self._intake = intake
        self._full = RecentRejections()

    def decide(self, context: RequestContext) -> AbstractContextManager[Decision]:
        """In which a surface takes a call from its entering to its answer; it is counted once."""
        return count_decision(self._counter, context)

    async def enter(
        self,
        headers: Iterable[Header],
        context: RequestContext,
        plan: Callable[[Payer], Awaitable[P]],
        *,
        writes: bool = True,
    ) -> tuple[Payer, P]:
        """Who pays for a call, and its plan, whose hold stands now; it is the caller's to end.

        A call that `writes` no object goes on while the record is full.

        `plan` reads and judges the call, up to what it would cost; it asks `policy.check` in its
        place, and raises what it refuses. It takes nothing that would have to be given back: the
        call may still be refused. It is asked anew while another call holds money under the name
        of this one. This is done within `decide`. The context learns of the account and the rate
        headers.

        Raises every GatewayError that comes before upstream in §0.9.
        """
        self._intake.check(writes=writes)
        caller = await self._authenticator.authenticate(headers, Act.CREATE)
        context.account = caller.account.name
        payer = Payer(caller, await self._policies.find(caller.key))
        account, budgets = payer.account, payer.policy.budgets
        if self._full.is_noted(account.name, budgets):
            await self._ask(payer, context, None, "look")
            self._full.forget(account.name, budgets)
        planned, problem = None, None
        try:
            planned = await plan(payer)
        except GatewayError as error:
            problem = error
        hold = None if planned is None else planned.hold
        # what the call may not do does not count, yet the rate is answered first (§12.1)
        rate: RateUse = "look" if isinstance(problem, Forbidden) else "count"
        if hold is not None:
            self._failpoints.reach("before-reserve")
        answer = await self._ask(payer, context, hold, rate)
        if answer.exceeded is None:
            # a credit limit's refusal carries none: they would describe what is not the cause
            context.headers.extend(list_rate_headers(answer.rate))
        if problem is not None:
            raise problem
        assert planned is not None
        if hold is not None:
            if answer.busy:
                planned = await self._outwait(payer, context, plan)
            else:
                _check_money(payer, answer, hold.micros)
            self._failpoints.reach("after-reserve")
        return payer, planned

    async def _outwait(
        self, payer: Payer, context: RequestContext, plan: Callable[[Payer], Awaitable[P]]
    ) -> P:
        """The plan, its money held, once the call that holds money under its name is decided.

        That one has the same Idempotency-Key and pays otherwise: as a rule the plan finds what it
        made, and replays or refuses it (§2.2).

        Raises:
            WinnerUndecided: it is undecided after 10 s.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + GIVE_UP_SECONDS
        for pause in chain(PAUSES, repeat(PAUSES[-1])):
            if loop.time() + pause >= deadline:
                break
            await asyncio.sleep(pause)
            planned = await plan(payer)
            if planned.hold is None:
                return planned
            answer = await self._ask(payer, context, planned.hold, "skip")
            if not answer.busy:
                _check_money(payer, answer, planned.hold.micros)
                return planned
        raise WinnerUndecided

    async def _ask(
        self, payer: Payer, context: RequestContext, hold: Hold | None, rate: RateUse
    ) -> AdmissionAnswer:
        """The counters' answer. RateLimited."""
        account, budgets = payer.account, payer.policy.budgets
        with context.span.child("reserve", kind=SpanKind.CLIENT):
            answer = await self._gate.admit(account, hold, budgets, rate)
        if answer.rate_exceeded:
            self._full.note(account.name, budgets, answer.retry_after)
            raise RateLimited(answer.rate, answer.retry_after)
        return answer

    async def release(self, payer: Payer, hold: Hold) -> None:
        """Gives back the hold of a call that came to nothing."""
        await self._gate.release(payer.account.name, hold.task)


def _check_money(payer: Payer, answer: AdmissionAnswer, micros: int) -> None:
    """Raises where the money is not held: it fails closed (§12.5)."""
    if answer.stale and (payer.policy.limited or not payer.account.unlimited):
        raise Unavailable("The account's balance is being recounted.")
    if answer.exceeded is not None:
        title = payer.policy.name_subject(answer.exceeded.budget.subject)
        raise CreditLimitExceeded(describe_limit(answer.exceeded, title, micros))
    if answer.underfunded:
        raise InsufficientBalance(
            f"The balance does not cover this call, which reserves {to_decimal_text(micros)} USD."
        )
