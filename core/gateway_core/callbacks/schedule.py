"""Schedule of callback attempts and meaning of responses (contract §11.3, §11.4). Pure."""

from collections.abc import Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Annotated

from pydantic import Field

CallbackSeconds = Annotated[float, Field(gt=0, le=60, allow_inf_nan=False)]
CALLBACK_SECONDS = 15.0
"""For a whole attempt, to the receiver's answer."""
SCHEDULE = (0.0, 5.0, 30.0, 120.0, 600.0, 1800.0, 7200.0, 18000.0, 36000.0)
"""Seconds after the terminal state, then after each attempt: about 18 hours in total."""
JITTER = 0.1
"""Random part of a delay, so that callbacks do not all return to a receiver at once."""
MOST_RETRY_AFTER = 3600.0


class State:
    """Values of `status.callback.state`."""

    PENDING = "Pending"
    DELIVERED = "Delivered"
    UNDELIVERED = "Undelivered"


class Verdict(Enum):
    """Result of an attempt."""

    DELIVERED = "delivered"
    FAILED = "failed"  # to be repeated while the schedule lasts
    REFUSED = "refused"  # the receiver wants no further attempts for this task


def judge(status: int | None) -> Verdict:
    """Return the verdict on a response's HTTP status; None without a response.

    Only 2xx is success; redirects are failures and never followed.
    """
    if status is not None and 200 <= status <= 299:
        return Verdict.DELIVERED
    return Verdict.REFUSED if status == 410 else Verdict.FAILED


def find_delay(
    schedule: Sequence[float], attempts: int, *, retry_after: float | None, jitter: float
) -> float | None:
    """Return seconds from attempt number `attempts` to the next; None after the last.

    `retry_after` replaces a shorter delay. `jitter` is between -1 and 1.
    """
    if attempts >= len(schedule):
        return None
    delay = schedule[attempts] * (1 + JITTER * jitter)
    return max(delay, min(retry_after or 0.0, MOST_RETRY_AFTER))


def read_retry_after(status: int | None, header: str | None, now: float) -> float | None:
    """Return seconds of a `Retry-After` header on a 429 or 503, at most an hour; None without one.

    `header` is whole seconds or an HTTP date, else it counts as absent; `now` is Unix seconds.
    """
    if status not in (429, 503) or header is None:
        return None
    text = header.strip()
    try:
        if text.isascii() and text.isdigit():
            seconds = float(text)
        else:
            moment = parsedate_to_datetime(text)
            moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            seconds = moment.timestamp() - now
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return min(MOST_RETRY_AFTER, seconds) if seconds > 0 else None
