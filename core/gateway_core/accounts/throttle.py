"""Limits of what anyone may try without a credential: by address, user or other name."""

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import structlog

from gateway_core.api.errors import TooManyCalls, Unavailable
from gateway_core.redis.link import CountersUnavailable
from gateway_core.redis.transient import TransientStore

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Allowance:
    """At most `most` tries in `seconds`. `optional`: tries pass while Redis is away."""

    most: int
    seconds: int
    optional: bool = False


class Throttle:
    """Counts tries; one for a process. `allowances` are the limits by what is tried."""

    def __init__(self, store: TransientStore, allowances: Mapping[str, Allowance]) -> None:
        self._store = store
        self._allowances = allowances

    async def count(self, what: str, who: str) -> None:
        """Count one try. TooManyCalls beyond the limit; Unavailable without Redis."""
        allowance = self._allowances[what]
        try:
            number, left = await self._store.count(_name(what, who), allowance.seconds)
        except CountersUnavailable as error:
            if allowance.optional:
                _log.warning("tries are not counted", what=what, error=str(error))
                return
            raise Unavailable("Sign-in is not possible now.") from error
        if number > allowance.most:
            raise TooManyCalls("Too many attempts; try again later.", retry_after=left)

    async def forget(self, what: str, who: str) -> None:
        """Begin the count anew: what was tried has succeeded. A failure changes nothing."""
        with suppress(CountersUnavailable):
            await self._store.remove(_name(what, who))


def _name(what: str, who: str) -> str:
    # names are of any length and may be secrets
    return f"tries/{what}/{hashlib.sha256(who.encode()).hexdigest()[:32]}"
