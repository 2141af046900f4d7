"""Spending windows: which buckets count in a window, their sum, and when it decreases.

Trailing windows count whole buckets, `1h` minutes, `1d` and `7d` hours, and a bucket counts until
it lies outside completely. The others begin at 00:00 UTC, weeks on Mondays, and count days
(contract §9.1). Buckets are numbered from the Unix epoch, in UTC.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Literal

from gateway_core.api.limits import Window

MINUTE, HOUR, DAY = 60, 3600, 86400

Grain = Literal["minutes", "hours", "days", "total"]

TRAILING: Mapping[Window, tuple[int, int, Grain]] = {
    "1h": (HOUR, MINUTE, "minutes"),
    "1d": (DAY, HOUR, "hours"),
    "7d": (7 * DAY, HOUR, "hours"),
}
"""Seconds of each trailing window, seconds of its buckets, and their grain."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """Micro-dollars charged to one subject: by minute, hour and day, and in total.

    Each charge is in all of them, as long as buckets of that grain are kept.
    """

    minutes: Mapping[int, int] = field(default_factory=dict)
    hours: Mapping[int, int] = field(default_factory=dict)
    days: Mapping[int, int] = field(default_factory=dict)
    total: int = 0


@dataclass(frozen=True, slots=True)
class Span:
    """The buckets of `grain` from number `first` on."""

    grain: Grain
    first: int


def find_span(window: Window, now: datetime) -> Span:
    """Return the buckets of `window` that count at `now` (aware)."""
    moment = now.astimezone(UTC)
    today = number_day(moment.date())
    match window:
        case "1h" | "1d" | "7d":
            length, bucket, grain = TRAILING[window]
            return Span(grain, int((moment.timestamp() - length) // bucket))
        case "daily":
            return Span("days", today)
        case "weekly":
            return Span("days", today - moment.weekday())
        case "monthly":
            return Span("days", today - moment.day + 1)
        case "lifetime":
            return Span("total", 0)


def sum_window(buckets: Buckets, window: Window, now: datetime) -> int:
    """Micro-dollars of `buckets` that count in `window` at `now`."""
    span = find_span(window, now)
    if span.grain == "total":
        return buckets.total
    parts: Mapping[int, int] = getattr(buckets, span.grain)
    return sum(micros for number, micros in parts.items() if number >= span.first)


def find_reset(buckets: Buckets, window: Window, now: datetime) -> datetime | None:
    """When the window's sum next decreases; None for `lifetime`.

    A trailing window resets when its oldest bucket with a charge leaves it; without charges, now.
    """
    moment = now.astimezone(UTC)
    midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    match window:
        case "1h" | "1d" | "7d":
            length, bucket, grain = TRAILING[window]
            first, parts = find_span(window, now).first, getattr(buckets, grain)
            charged = [number for number, micros in parts.items() if number >= first and micros]
            if not charged:
                return moment
            return datetime.fromtimestamp((min(charged) + 1) * bucket + length, UTC)
        case "daily":
            return midnight + timedelta(days=1)
        case "weekly":
            return midnight + timedelta(days=7 - moment.weekday())
        case "monthly":
            # 32 days after the first of a month are always in the next month
            return (midnight.replace(day=1) + timedelta(days=32)).replace(day=1)
        case "lifetime":
            return None


def number_day(day: date) -> int:
    """Return the day's bucket: days since the epoch."""
    return day.toordinal() - date(1970, 1, 1).toordinal()
