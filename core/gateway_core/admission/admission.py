"""Admission of paid calls, in the order of contract §0.9, and authorization of all others.

    maintenance 503 → credential 401 → class, role 403    `authenticate`
      → rate 429                                          `reserve`, asked first
      → the call's own problem: body 400, replay conflict 409, model 403, resource 404, state 409
      → credit limit 429 → balance 402                    `reserve`

A surface prepares its call between the two (body, replay, price) and keeps back the problem that it
finds, so that Redis is asked once. Redis counts every call, except for those that the key may not
make (403) and those beyond a limit (429). It reserves money only if the call has no other problem.
The response still follows the contract's order, the rate first.
"""

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

from gateway_core.accounts.authentication import (
    Authenticator,
    Headers,
    PolicyView,
    Principal,
)
from gateway_core.accounts.guardrails import Policy
from gateway_core.accounts.records import AccountRecord
from gateway_core.accounts.roles import Act, is_confined, refuse_session
from gateway_core.admission.context import CallContext
from gateway_core.admission.intake import Intake
from gateway_core.admission.rates import FreeRateLimiter, RateLimiter, RecentRejections
from gateway_core.api.errors import (
    CreditLimitExceeded,
    Forbidden,
    GatewayError,
    InsufficientBalance,
    RateLimited,
    Unavailable,
    WinnerUndecided,
)
from gateway_core.api.ids import is_call
from gateway_core.billing.counters import AdmissionAnswer, FreeRate, Hold, RateUse
from gateway_core.billing.limits import describe_limit, describe_shortage
from gateway_core.failpoints import Failpoints
from gateway_core.observability.tracing import SpanKind

T = TypeVar("T")


class Payer:
    """The caller, its account, which pays, and the policy of its key."""

    __slots__ = ("account", "caller", "policy")

    def __init__(self, caller: Principal, policy: Policy) -> None:
        self.caller = caller
        self.account: AccountRecord = caller.account
        self.policy = policy

    def make_hold(self, name: str, micros: int) -> Hold:
        """Return the reservation of the task or call `name`, in every budget that it counts in."""
        return Hold(name, micros, self.policy.subjects)


async def capture(preparing: Awaitable[T]) -> tuple[T | None, GatewayError | None]:
    """Return the result of a preparation, or the problem that `Admission.reserve` raises then."""
    try:
        return await preparing, None
    except GatewayError as problem:
        return None, problem


class Admission:
    """Admits paid calls and reserves their money."""

    def __init__(
        self,
        authenticator: Authenticator,
        policies: PolicyView,
        limiter: RateLimiter,
        failpoints: Failpoints,
        intake: Intake,
    ) -> None:
        self._authenticator = authenticator
        self._policies = policies
        self._limiter = limiter
        self._failpoints = failpoints
        self._intake = intake
        self._rejections = RecentRejections()

    async def authenticate(
        self, headers: Headers, context: CallContext, *, writes: bool = True
    ) -> Payer:
        """Return the payer of a call. One that `writes` no object is admitted while etcd is full.

        Raises Unavailable, Unauthenticated, Forbidden; RateLimited for an account that was rejected
        a moment ago, since preparing its call may read the Kubernetes API and the archive.
        """
        self._intake.check(writes=writes)
        caller = context.caller
        if caller is None:
            caller = await self._authenticator.authenticate(headers, Act.CREATE)
        context.account = caller.account.name
        payer = Payer(caller, await self._policies.find(caller.key))
        if not self._rejections:
            return payer
        account, budgets = payer.account.name, payer.policy.budgets
        if self._rejections.contains(account, budgets):
            await self._ask(payer, context, None, "look")
            self._rejections.forget(account, budgets)
        return payer

    async def reserve(
        self,
        payer: Payer,
        context: CallContext,
        hold: Hold | None,
        problem: GatewayError | None = None,
        *,
        counts: bool = True,
    ) -> None:
        """Count the call, raise its `problem`, and reserve its money: one round trip at most.

        Without a `hold` it costs nothing, as a replay does. The caller ends the reservation. A call
        that was counted before does not count again (`counts`).

        Raises RateLimited, then the problem, then CreditLimitExceeded, InsufficientBalance;
        Unavailable; WinnerUndecided while another call has another reservation of the same name;
        Unauthenticated where another account has the payer's name by now.
        """
        if hold is not None:
            self._authenticator.check_same(payer.account)
            if problem is None and counts and is_call(hold.task):
                rate_left = self._limiter.take(payer.account, payer.policy, hold)
                if rate_left is not None:
                    context.rate = rate_left
                    return
            self._failpoints.reach("before-reserve")
        rate: RateUse = "count" if counts else "skip"
        if isinstance(problem, Forbidden):
            # what the call may not do does not count, yet the rate is answered first (§12.1)
            rate = "look"
        answer = await self._ask(payer, context, hold, rate)
        if counts and answer.exceeded is None:
            # a credit limit's refusal has no rate headers: they would describe another cause
            context.rate = answer.rate
        if problem is not None:
            raise problem
        if hold is not None:
            if answer.busy:
                raise WinnerUndecided
            _check_money(payer, answer, hold.micros)
            self._failpoints.reach("after-reserve")

    async def release(self, payer: Payer, hold: Hold) -> None:
        """Release the reservation of a call that failed."""
        await self._limiter.release(payer.account.name, hold.task)

    async def _ask(
        self, payer: Payer, context: CallContext, hold: Hold | None, rate: RateUse
    ) -> AdmissionAnswer:
        account, budgets = payer.account, payer.policy.budgets
        with context.span.child("reserve", kind=SpanKind.CLIENT):
            answer = await self._limiter.admit(account, hold, budgets, rate)
        if answer.rate_exceeded:
            self._rejections.note(account.name, budgets, answer.retry_after)
            raise RateLimited(answer.rate, answer.retry_after)
        return answer


def _check_money(payer: Payer, answer: AdmissionAnswer, micros: int) -> None:
    """Raise if the money is not reserved: it fails closed (§12.5)."""
    if answer.stale and (payer.policy.limited or not payer.account.unlimited):
        raise Unavailable("The account's balance is being recounted.")
    if answer.exceeded is not None:
        title = payer.policy.name_subject(answer.exceeded.budget.subject)
        raise CreditLimitExceeded(describe_limit(answer.exceeded, title, micros))
    if answer.underfunded:
        raise InsufficientBalance(describe_shortage(answer.left, micros))


@dataclass(frozen=True, slots=True)
class Access:
    """What an operation requires: a permitted act, and room in a free rate.

    `creates`: refused while intake is stopped. `anonymous`: a call without a
    credential passes, where the deployment permits that.
    `confines`: the operation shows and changes a user's own keys alone, for users who may no more.
    """

    act: Act = Act.READ
    creates: bool = False
    rate: FreeRate | None = None
    anonymous: bool = False
    confines: bool = False


class Authorizer:
    """Authorizes calls of operations that cost nothing.

    `permits_anonymous`: operations that may be called without a credential can be.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        rates: FreeRateLimiter,
        intake: Intake,
        *,
        permits_anonymous: bool = True,
    ) -> None:
        self._authenticator = authenticator
        self._rates = rates
        self._intake = intake
        self._permits_anonymous = permits_anonymous

    async def authorize(
        self, headers: Headers, context: CallContext, access: Access
    ) -> Principal | None:
        """Return the caller, None for an anonymous one.

        Raises Unavailable, Unauthenticated, Forbidden, TooManyCalls.
        """
        if access.creates:
            self._intake.check()
        is_anonymous = not any(name == b"authorization" for name, _ in headers)
        if is_anonymous and access.anonymous and self._permits_anonymous:
            return None
        caller = await self._authenticator.authenticate(headers, access.act)
        context.account = caller.account.name
        if access.rate is not None:
            await self._rates.count(caller.account.name, access.rate)
        return caller

    async def authorize_session(
        self, caller: Principal, context: CallContext, access: Access, *, counts: bool
    ) -> None:
        """The same for a signed-in user. Forbidden, TooManyCalls, Unavailable.

        `counts`: the call counts in the account's free rate. A page makes several reads, and is
        counted as one of its user instead.
        """
        if access.creates:
            self._intake.check()
        refusal = refuse_session(access.act, caller.role)
        if access.act is Act.GOVERN and is_confined(caller.role) and not access.confines:
            refusal = "insufficient_role"
        if refusal is not None:
            raise Forbidden(f"Your role, {caller.role}, does not allow this.", code=refusal)
        context.account = caller.account.name
        if counts and access.rate is not None:
            await self._rates.count(caller.account.name, access.rate)
