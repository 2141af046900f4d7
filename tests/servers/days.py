"""Days of UTC, for tests of what is summed up by them."""

from datetime import UTC, datetime, timedelta


def find_pause(now: datetime, seconds: float) -> float:
    """How long a test that takes so many seconds waits, so that it begins and ends on one day."""
    tomorrow = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    left = (tomorrow + timedelta(days=1) - now).total_seconds()
    return left if left < seconds else 0.0
