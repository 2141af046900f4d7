"""Times of resources: RFC 3339 in UTC, and a form for label values."""

from datetime import UTC, datetime


def parse_time(text: str | None) -> datetime:
    """Return an aware time from RFC 3339; the epoch for None."""
    return datetime.fromisoformat(text or "1970-01-01T00:00:00Z")


def format_time(moment: datetime) -> str:
    """RFC 3339 in UTC, whole seconds (contract §0.3)."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_precise_time(moment: datetime) -> str:
    """RFC 3339 in UTC with microseconds, for times that are compared."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def format_label_time(moment: datetime) -> str:
    """ISO 8601 for a label's value, e.g. `20261121T101530Z`."""
    return moment.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")


def parse_label_time(text: str) -> datetime | None:
    """Return the aware time in a label's value; None where it is malformed."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else None
