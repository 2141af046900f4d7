"""A test of one day's figures does not run across midnight."""

from datetime import UTC, datetime

import pytest

from tests.servers.clocks import find_pause


@pytest.mark.parametrize(
    ("time", "pause"),
    [((12, 0, 0), 0), ((23, 58, 59), 0), ((23, 59, 30), 30), ((0, 0, 0), 0)],
)
def test_pause_reaches_to_midnight(time: tuple[int, int, int], pause: float) -> None:
    assert find_pause(datetime(2026, 12, 31, *time, tzinfo=UTC), 60) == pause
