"""Money, times and lists as they are written on the command line.

Parsers for options: what cannot be read is a usage error that shows how it is written.
"""

import re
from datetime import UTC, datetime, timedelta

import typer

from gateway_core.contract.money import MAX_MICROS, MICROS_PER_DOLLAR

_DOLLARS = re.compile(r"\$?(\d{1,10})(?:\.(\d{1,6}))?", re.ASCII)
_PERIOD = re.compile(r"(\d{1,9})([smhdw]?)", re.ASCII)
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
MOST_SECONDS = 100 * 366 * 86_400


def parse_dollars(text: str) -> int:
    """Micro-dollars of `12`, `12.50` or `0.000125`. No floats: six decimals, and exactly them."""
    match = _DOLLARS.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(
            f"{text!r} is no amount: dollars are written like 25 or 12.50, with a point, at most"
            " six decimals, and neither sign nor commas"
        )
    micros = int(match[1]) * MICROS_PER_DOLLAR + int((match[2] or "").ljust(6, "0"))
    if micros > MAX_MICROS:
        raise typer.BadParameter(f"{text} is more than can be counted")
    return micros


def parse_period(text: str | int) -> int:
    """Seconds of `90`, `90s`, `15m`, `24h`, `7d` or `2w`; a default in seconds stays."""
    if isinstance(text, int):
        return text
    match = _PERIOD.fullmatch(text.strip().lower())
    if match is None:
        raise typer.BadParameter(
            f"{text!r} is no period: it is written like 90s, 15m, 24h, 7d or 2w"
        )
    seconds = int(match[1]) * _UNITS[match[2]]
    if seconds > MOST_SECONDS:
        raise typer.BadParameter(f"{text} is more than a century")
    return seconds


def parse_moment(text: str) -> str:
    """RFC 3339 in UTC of such a time, of a date (its 00:00 UTC), or of a period from now."""
    if _PERIOD.fullmatch(text.strip().lower()):
        return format_time(datetime.now(UTC) + timedelta(seconds=parse_period(text)))
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no time: it is written like 2027-01-31, 2027-01-31T18:00:00Z, or 30d"
            " for a time from now"
        ) from None
    if moment.tzinfo is None and "T" in text.upper():
        raise typer.BadParameter(f"{text!r} lacks its offset: add Z for UTC, or e.g. +02:00")
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if moment <= datetime.now(UTC):
        raise typer.BadParameter(f"{text} is over")
    return format_time(moment)


def parse_day(text: str) -> str:
    """A UTC day, `2026-11-21`."""
    try:
        return datetime.strptime(text.strip(), "%Y-%m-%d").replace(tzinfo=UTC).date().isoformat()
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no day: it is written like 2026-11-21") from None


def format_time(moment: datetime) -> str:
    """RFC 3339 in UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
