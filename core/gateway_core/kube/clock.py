"""Clock of the API server, which all stored times follow; read from Date headers of responses."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache

import aiohttp


class ServerClock:
    """Estimate of the API server's clock; a process has one, `CLOCK`. Not thread-safe."""

    def __init__(
        self,
        wall: Callable[[], float] | None = None,
        monotonic: Callable[[], float] | None = None,
    ) -> None:
        # looked up at each call, as tests replace both
        self._wall = wall or (lambda: time.time())
        self._monotonic = monotonic or (lambda: time.monotonic())
        self._zero: float | None = None

    def time(self) -> float:
        """Unix seconds."""
        return self._wall() if self._zero is None else self._zero + self._monotonic()

    def now(self) -> datetime:
        """Return the time in UTC."""
        return datetime.fromtimestamp(self.time(), UTC)

    @property
    def skew(self) -> float:
        """Seconds by which the machine's clock is ahead."""
        return self._wall() - self.time()

    def follow(self, date: str | None, sent: float) -> None:
        """Correct the estimate by a response's `Date` header; None or a malformed one is ignored.

        `sent` is the monotonic time before the request. Call it as soon as the head is read.
        """
        stamp = None if date is None else _read_date(date)
        if stamp is None:
            return
        # the header has whole seconds: the true time lies between them, and between the moments
        # of request and response, so each response narrows the estimate
        received = self._monotonic()
        zero = self._wall() - received if self._zero is None else self._zero
        self._zero = min(max(zero, stamp - received), stamp + 1 - sent)


@lru_cache(maxsize=4)
def _read_date(text: str) -> float | None:
    """Unix seconds of an HTTP date, None where it is malformed."""
    try:
        return parsedate_to_datetime(text).timestamp()
    except ValueError:
        return None


CLOCK = ServerClock()
"""The clock of this process."""


def follow_clock(response: aiohttp.ClientResponse, sent: float) -> None:
    """Correct `CLOCK` by a response; `sent` as for `ServerClock.follow`."""
    # other responses may be a proxy's, whose clock dates no object
    if response.status < 300 or response.status in (404, 409):
        CLOCK.follow(response.headers.get("Date"), sent)
