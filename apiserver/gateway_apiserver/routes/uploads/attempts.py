"""How long a request goes on where others write the same object, or an answer was lost."""

import asyncio
import random
import time
from collections.abc import AsyncIterator

GIVE_UP_SECONDS = 10.0
_PAUSE_SECONDS = 0.01
_LONGEST_PAUSE_SECONDS = 0.5


async def take_turns() -> AsyncIterator[float]:
    """Turns for ten seconds, and what is left of them; with pauses, that keep rivals apart."""
    deadline = time.monotonic() + GIVE_UP_SECONDS
    pause = _PAUSE_SECONDS
    while (left := deadline - time.monotonic()) > 0:
        yield left
        await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - no secret
        pause = min(_LONGEST_PAUSE_SECONDS, pause * 2)
