"""Windows of spending: which buckets count, how much that is, and when it becomes less.

Pure. Trailing windows are counted in whole buckets, `1h` in minutes, `1d` and `7d` in hours, and a
bucket counts until it lies wholly outside; the others begin at 00:00 UTC, weeks on Mondays, and are
counted in days (contract §9.1). Buckets are numbered from the epoch, in UTC.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Literal

from gateway_core.api.limits import Window

MINUTE, HOUR, DAY = 60, 3600, 86400

Grain = Literal["minutes", "hours", "days", "total"]


@dataclass(frozen=True, slots=True)
class Buckets:
    """Micro-dollars that one subject was charged: by minute, hour and day, and ever.

    Each charge is in all of them, as long as that grain is kept.
    """

    minutes: Mapping[int, int] = field(default_factory=dict)
    hours: Mapping[int, int] = field(default_factory=dict)
    days: Mapping[int, int] = field(default_factory=dict)
    total: int = 0


@dataclass(frozen=True, slots=True)
class Span:
    """The buckets that count at one moment: those of `grain` from `first` on."""

    grain: Grain
    first: int


def find_span(window: Window, now: datetime) -> Span:
    """The buckets of `window` that count at `now` (aware)."""
    moment = now.astimezone(UTC)
    seconds, today = moment.timestamp(), number_day(moment.date())
    match window:
        case "1h":
            return Span("minutes", _first_trailing(seconds, HOUR, MINUTE))
        case "1d":
            return Span("hours", _first_trailing(seconds, DAY, HOUR))
        case "7d":
            return Span("hours", _first_trailing(seconds, 7 * DAY, HOUR))
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
    """When the window's sum next becomes less: None for `lifetime`.

    A trailing window's is when its oldest bucket that has a charge leaves it; one that has none
    resets now.
    """
    moment = now.astimezone(UTC)
    midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    match window:
        case "1h":
            return _leave_time(buckets.minutes, find_span(window, now), MINUTE, HOUR, moment)
        case "1d":
            return _leave_time(buckets.hours, find_span(window, now), HOUR, DAY, moment)
        case "7d":
            return _leave_time(buckets.hours, find_span(window, now), HOUR, 7 * DAY, moment)
        case "daily":
            return midnight + timedelta(days=1)
        case "weekly":
            return midnight + timedelta(days=7 - moment.weekday())
        case "monthly":
            return (midnight.replace(day=1) + timedelta(days=32)).replace(day=1)
        case "lifetime":
            return None


def _first_trailing(seconds: float, length: int, bucket: int) -> int:
    """The oldest bucket that is not wholly outside the last `length` seconds."""
    return int((seconds - length) // bucket)


def _leave_time(
    parts: Mapping[int, int], span: Span, bucket: int, length: int, now: datetime
) -> datetime:
    counted = [number for number, micros in parts.items() if number >= span.first and micros]
    if not counted:
        return now
    return datetime.fromtimestamp((min(counted) + 1) * bucket + length, UTC)


def number_day(day: date) -> int:
    """The day's bucket: days since the epoch."""
    return day.toordinal() - date(1970, 1, 1).toordinal()
