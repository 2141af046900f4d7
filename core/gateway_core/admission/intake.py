"""Stop of all requests that create (contract §0.9): the first check of each of them.

Intake stops under maintenance, while the operator's flag says that etcd is near its quota, and for
some seconds after the Kubernetes API has refused a write for lack of space. Reads, cancels, deletes
and the work under way go on.
"""

import asyncio
import time
from collections.abc import Callable, Mapping

import structlog

from gateway_core.api.errors import Unavailable
from gateway_core.redis.link import CountersUnavailable, RedisAdapter

LOOK_SECONDS = 5.0
TRUSTED_SECONDS = 90.0
"""How long the last read of the flag counts while Redis is away."""
FULL_SECONDS = 10.0
"""From a refused write to the next create that tries whether there is space again."""
RETRY_SECONDS = 30

_log = structlog.get_logger(__name__)


class IntakeStop(RedisAdapter):
    """A flag shared by all processes of one gateway. Every method raises CountersUnavailable."""

    async def set(self, seconds: int) -> None:
        """Set the flag; it expires after `seconds` unless it is set again."""
        await self._ask(self._redis.set(self._key, 1, ex=seconds))

    async def clear(self) -> None:
        """Remove the flag."""
        await self._ask(self._redis.delete(self._key))

    async def is_set(self) -> bool:
        """Return whether the flag is set."""
        return bool(await self._ask(self._redis.exists(self._key)))

    @property
    def _key(self) -> str:
        return f"{self._head.removesuffix('/')}}}:intake-stop"


class Intake:
    """One for a process. `clock` gives monotonic seconds."""

    def __init__(
        self, *, maintenance: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._maintenance = maintenance
        self._clock = clock
        self._near_until = self._full_until = float("-inf")

    def check(self, *, writes: bool = True) -> None:
        """Raise Unavailable while intake is stopped.

        Only maintenance stops a call that `writes` no object.
        """
        if self._maintenance:
            raise Unavailable("The service is under maintenance.", retry_after=60)
        now = self._clock()
        if writes and now < max(self._near_until, self._full_until):
            raise Unavailable(
                "The service takes nothing new now: its storage is full.",
                retry_after=RETRY_SECONDS,
            )

    @property
    def stops(self) -> Mapping[str, bool]:
        """By reason, whether it stops intake now."""
        now = self._clock()
        return {
            "maintenance": self._maintenance,
            "quota": now < self._near_until,
            "refused": now < self._full_until,
        }

    def note_full(self) -> None:
        """Note that the Kubernetes API refused a write for lack of space."""
        self._full_until = self._clock() + FULL_SECONDS

    async def follow(self, stop: IntakeStop) -> None:
        """Read the operator's flag every few seconds, until cancelled."""
        while True:
            try:
                is_set = await stop.is_set()
            except CountersUnavailable as error:
                _log.info("the flag of a full etcd cannot be read", error=str(error))
            else:
                self._near_until = self._clock() + TRUSTED_SECONDS if is_set else float("-inf")
            await asyncio.sleep(LOOK_SECONDS)
