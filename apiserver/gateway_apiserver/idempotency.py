"""Idempotency-Keys on creates (contract §2.2): errors, and attempts while others write."""

import asyncio
import random
import time
from collections.abc import AsyncIterator

from gateway_core.api.errors import Conflict, Unavailable

GIVE_UP_SECONDS = 10.0
"""How long a request goes on where others write the same object, or an answer was lost."""
_FIRST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 0.5


class KeyReused(Conflict):
    """The Idempotency-Key stands for a request with different input."""

    code = "idempotency_conflict"

    def __init__(self) -> None:
        super().__init__("Idempotency-Key was already used with different input")


class WinnerUndecided(Unavailable):
    """Another call with the Idempotency-Key came first, and its outcome is not known yet."""

    def __init__(self) -> None:
        super().__init__(
            "Another request with this Idempotency-Key is being decided.", retry_after=1
        )


async def attempt() -> AsyncIterator[float]:
    """Attempts for ten seconds, each with the seconds left; jittered pauses between them."""
    deadline = time.monotonic() + GIVE_UP_SECONDS
    pause = _FIRST_PAUSE_SECONDS
    while (left := deadline - time.monotonic()) > 0:
        yield left
        # jitter keeps concurrent clients of one object apart
        await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - no secret
        pause = min(_LONGEST_PAUSE_SECONDS, pause * 2)
