"""Authorization of calls that cost nothing: maintenance, credential, class, role, free rate.

Free rates bound Platform Management and creates of files (contract §12.1a). Without the counter
store each process counts its part of the limit, for as long as that lasts: no money depends on
these calls, and a leaked key must be revocable during an outage of Redis.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import structlog

from gateway_apiserver.admission.authentication import Authenticator, Principal
from gateway_apiserver.admission.intake import Intake
from gateway_apiserver.admission.rates import LocalWindows
from gateway_apiserver.context import Header, RequestContext
from gateway_core.accounts.roles import Act
from gateway_core.api.errors import TooManyCalls
from gateway_core.billing.counters import Counters, FreeRate
from gateway_core.kube.clock import CLOCK
from gateway_core.redis.link import CountersUnavailable

_TITLES: Mapping[FreeRate, str] = {
    "management": "management calls",
    "storage": "creates of files and uploads",
}
_log = structlog.get_logger(__name__)


class FreeRateLimiter:
    """Counts such calls by account. `limits` are calls in any trailing 60 s."""

    def __init__(
        self,
        counters: Counters,
        limits: Mapping[FreeRate, int],
        *,
        replicas: int = 1,
        clock: Callable[[], float] = CLOCK.time,
    ) -> None:
        self._counters = counters
        self._limits = limits
        self._local = LocalWindows(replicas, clock)
        self._away = False

    async def count(self, account: str, rate: FreeRate) -> None:
        """Counts one call of the account. Raises TooManyCalls beyond the limit."""
        limit = self._limits[rate]
        try:
            wait = await self._counters.count(account, rate, limit)
        except CountersUnavailable as error:
            if not self._away:
                self._away = True
                _log.warning("free calls are counted by each process", error=str(error))
            wait = self._local.count(account, rate, limit)
        else:
            if self._away:
                self._away = False
                self._local.clear()
        if wait:
            text = f"Rate limit of {limit} {_TITLES[rate]} per minute reached."
            raise TooManyCalls(text, retry_after=wait)


@dataclass(frozen=True, slots=True)
class Access:
    """What an operation requires: an act that the caller may do, and room in a free rate.

    `creates`: refused while intake is stopped. `anonymous`: a call without a credential passes.
    """

    act: Act = Act.READ
    creates: bool = False
    rate: FreeRate | None = None
    anonymous: bool = False


class Authorizer:
    """Checks callers of all operations that are not paid for."""

    def __init__(
        self, authenticator: Authenticator, rates: FreeRateLimiter, intake: Intake
    ) -> None:
        self._authenticator = authenticator
        self._rates = rates
        self._intake = intake

    async def authorize(
        self, headers: Iterable[Header], context: RequestContext, access: Access
    ) -> Principal | None:
        """The caller, None for an anonymous one.

        Raises Unavailable, Unauthenticated, Forbidden, TooManyCalls.
        """
        if access.creates:
            self._intake.check()
        if access.anonymous and not any(name == b"authorization" for name, _ in headers):
            return None
        caller = await self._authenticator.authenticate(headers, access.act)
        context.account = caller.account.name
        if access.rate is not None:
            await self._rates.count(caller.account.name, access.rate)
        return caller
