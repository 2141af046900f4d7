"""Limits of tries by address, user or other name: sign-ins, console pages, test deliveries."""

import hashlib
import hmac
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import structlog

from gateway_core.api.errors import TooManyCalls, Unavailable
from gateway_core.redis.link import CountersUnavailable
from gateway_core.redis.transient import TransientStore

BUCKETS = 2**16
"""Counts of one kind that Redis has at most: names are of anybody's choice, so they share these."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Allowance:
    """At most `most` tries in `seconds`. `optional`: tries pass while Redis is away."""

    most: int
    seconds: int
    optional: bool = False


class Throttle:
    """Counts tries. `allowances` are the limits by what is tried."""

    def __init__(
        self,
        store: TransientStore,
        allowances: Mapping[str, Allowance],
        id_key: bytes,
        subject: str = "Sign-in",
    ) -> None:
        """`id_key` is the key of `IdMint`, from which a key of its own is derived.

        `subject` names what is not possible in the error while Redis is away.
        """
        self._store = store
        self._allowances = allowances
        self._subject = subject
        self._key = hmac.digest(id_key, b"counts of tries", hashlib.sha256)

    async def count(self, what: str, who: str) -> None:
        """Count one try. TooManyCalls beyond the limit; Unavailable without Redis."""
        left = await self._exceed(what, who)
        if left:
            raise TooManyCalls("Too many attempts; try again later.", retry_after=left)

    async def is_exceeded(self, what: str, who: str) -> bool:
        """Count one try; whether it is beyond the limit. Unavailable without Redis."""
        return await self._exceed(what, who) > 0

    async def forget(self, what: str, who: str) -> None:
        """Begin the count anew: what was tried has succeeded. A failure changes nothing."""
        with suppress(CountersUnavailable):
            await self._store.remove(self._name(what, who))

    async def _exceed(self, what: str, who: str) -> int:
        """Count one try; the seconds to wait where it is beyond the limit, else 0."""
        allowance = self._allowances[what]
        try:
            number, left = await self._store.count(self._name(what, who), allowance.seconds)
        except CountersUnavailable as error:
            if allowance.optional:
                _log.warning("tries are not counted", what=what, error=str(error))
                return 0
            raise Unavailable(f"{self._subject} is not possible now.") from error
        return left if number > allowance.most else 0

    def _name(self, what: str, who: str) -> str:
        # keyed: nobody can choose a name that shares the bucket of another
        code = hmac.digest(self._key, who.encode(errors="replace"), hashlib.sha256)
        return f"tries/{what}/{int.from_bytes(code[:8], 'big') % BUCKETS}"
