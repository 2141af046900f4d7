"""The API server's clock, by which the times of resources are judged.

A process learns it from the Date header of the responses that it receives anyway.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache

import aiohttp


class ServerClock:
    """Follows the API server's clock; every process has one, `CLOCK`. Of no use across threads."""

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
        """The same, in UTC."""
        return datetime.fromtimestamp(self.time(), UTC)

    @property
    def skew(self) -> float:
        """Seconds that the machine's clock is ahead of this one."""
        return self._wall() - self.time()

    def follow(self, date: str | None, sent: float) -> None:
        """Takes an answer of the server into account.

        `date` is its `Date` header, None or malformed ones are ignored; `sent` is the moment on the
        monotonic clock before the request was sent. To be called as soon as the head is read.
        """
        stamp = None if date is None else _read_date(date)
        if stamp is None:
            return
        received = self._monotonic()
        zero = self._wall() - received if self._zero is None else self._zero
        self._zero = min(max(zero, stamp - received), stamp + 1 - sent)


@lru_cache(maxsize=4)
def _read_date(text: str) -> float | None:
    """Unix seconds of an HTTP date, None where it is none."""
    try:
        return parsedate_to_datetime(text).timestamp()
    except ValueError:
        return None


CLOCK = ServerClock()
"""This process's."""


def follow_clock(response: aiohttp.ClientResponse, sent: float) -> None:
    """Has `CLOCK` take the answer into account; `sent` as for `ServerClock.follow`."""
    # other answers may be a proxy's, whose clock dates no object
    if response.status < 300 or response.status in (404, 409):
        CLOCK.follow(response.headers.get("Date"), sent)
