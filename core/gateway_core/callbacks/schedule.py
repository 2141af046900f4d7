"""When a callback is attempted, and what an answer means (contract §11.3, §11.4). Pure."""

from collections.abc import Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import Enum

SCHEDULE = (0.0, 5.0, 30.0, 120.0, 600.0, 1800.0, 7200.0, 18000.0, 36000.0)
"""Seconds after the terminal state, and then after each attempt: about 18 hours in all."""
JITTER = 0.1
"""Share by which a delay is longer or shorter, so that a receiver's return is no stampede."""
MOST_RETRY_AFTER = 3600.0


class State:
    """Values of `status.callback.state`."""

    PENDING = "Pending"
    DELIVERED = "Delivered"
    UNDELIVERED = "Undelivered"


class Verdict(Enum):
    """What an attempt came to."""

    DELIVERED = "delivered"
    FAILED = "failed"  # again, while the schedule lasts
    REFUSED = "refused"  # the receiver wants no more of this task


def judge(status: int | None) -> Verdict:
    """The verdict on an answer's HTTP status; None where there was no answer.

    Only 2xx is success: a redirect is a failure like any other, and never followed.
    """
    if status is not None and 200 <= status <= 299:
        return Verdict.DELIVERED
    return Verdict.REFUSED if status == 410 else Verdict.FAILED


def find_delay(
    schedule: Sequence[float], attempts: int, *, retry_after: float | None, jitter: float
) -> float | None:
    """Seconds to the attempt after `attempts` have been made; None if there is none left.

    A `retry_after` replaces a shorter delay. `jitter` is between -1 and 1.
    """
    if attempts >= len(schedule):
        return None
    delay = schedule[attempts] * (1 + JITTER * jitter)
    return max(delay, min(retry_after or 0.0, MOST_RETRY_AFTER))


def read_retry_after(status: int | None, header: str | None, now: float) -> float | None:
    """The seconds a receiver asks for with a 429 or 503, at most an hour; None if it does not.

    `header` is whole seconds or an HTTP date, `now` Unix seconds. What is neither counts as absent.
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
