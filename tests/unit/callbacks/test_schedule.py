"""The schedule of attempts and the verdict on answers (contract §11.3, §11.4)."""

from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway_core.callbacks.schedule import (
    SCHEDULE,
    Verdict,
    find_delay,
    judge,
    read_retry_after,
)

NOW = 1_800_000_000.0


def test_schedule_is_that_of_the_contract():
    hour = 3600
    assert (0, 5, 30, 120, 600, 1800, 2 * hour, 5 * hour, 10 * hour) == SCHEDULE
    assert sum(SCHEDULE) == pytest.approx(17.7 * hour, rel=0.01)


@given(st.integers(0, 8), st.floats(-1, 1))
def test_delay_is_within_a_tenth_of_the_schedule(attempts, jitter):
    delay = find_delay(SCHEDULE, attempts, retry_after=None, jitter=jitter)
    assert 0.9 * SCHEDULE[attempts] - 1e-6 <= delay <= 1.1 * SCHEDULE[attempts] + 1e-6


@given(st.floats(-1, 1), st.none() | st.floats(0, 1e9))
def test_ninth_attempt_is_the_last(jitter, retry_after):
    assert find_delay(SCHEDULE, 9, retry_after=retry_after, jitter=jitter) is None


@pytest.mark.parametrize(
    ("attempts", "asked", "delay"),
    [(1, 60, 60), (4, 60, 600), (1, 86_400, 3600), (8, 3600, 36_000), (1, None, 5)],
)
def test_retry_after_replaces_a_shorter_delay_up_to_an_hour(attempts, asked, delay):
    assert find_delay(SCHEDULE, attempts, retry_after=asked, jitter=0) == delay


@given(st.none() | st.integers(100, 999))
def test_only_2xx_is_success_and_only_410_stops(status):
    expected = Verdict.FAILED
    if status in range(200, 300):
        expected = Verdict.DELIVERED
    elif status == 410:
        expected = Verdict.REFUSED
    assert judge(status) is expected


@pytest.mark.parametrize(
    ("status", "header", "seconds"),
    [
        (429, "7", 7),
        (503, " 120 ", 120),
        (503, "99999", 3600),
        (503, formatdate(NOW + 90, usegmt=True), 90),
        (503, formatdate(NOW - 90, usegmt=True), None),
        (500, "7", None),
        (200, "7", None),
        (None, "7", None),
        (429, None, None),
        (429, "soon", None),
        (429, "-1", None),
        (429, "0", None),
        (429, "1e3", None),
        (429, "²", None),
        (429, "9" * 400, 3600),
    ],
)
def test_retry_after_of_429_and_503_alone(status, header, seconds):
    assert read_retry_after(status, header, NOW) == seconds


@given(st.text(max_size=60))
def test_any_header_is_ignored_or_bounded(header):
    seconds = read_retry_after(503, header, NOW)
    assert seconds is None or 0 < seconds <= 3600
