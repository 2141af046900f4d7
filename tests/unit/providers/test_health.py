"""Figures on calls of the last minutes: how they are counted, summed, rounded and aged."""

import pytest

from gateway_core.api.resource import Health, HealthState
from gateway_core.providers.health import (
    PERIODS,
    Figures,
    HealthReporter,
    HealthTally,
    decode_report,
    describe_health,
    sum_reports,
)
from gateway_core.providers.upstream import UpstreamDenied, UpstreamRejected
from tests.fakes.health import FakeHealthReports


def count(failures: int = 0, answers: int = 0, seconds: float = 0.1, **more: int) -> Figures:
    figures = Figures(**more)
    for _ in range(failures):
        figures.note_failure()
    for _ in range(answers):
        figures.note_answer(seconds, seconds / 2)
    return figures


def show(figures: Figures, shown: Health | None = None) -> Health:
    health = describe_health(figures, shown)
    assert health is not None
    return health


def test_figures_of_the_last_three_minutes_are_shown_by_rate_and_mean() -> None:
    assert show(count(failures=10, answers=290, seconds=0.1234)) == Health(
        state="Healthy",
        calls_per_minute=100,
        error_percent=3,
        latency_millis=120,
        first_token_millis=62,
    )


def test_health_is_absent_without_calls_and_its_means_without_answers() -> None:
    assert describe_health(Figures(), show(count(answers=1))) is None
    alone = show(count(failures=1))
    assert (alone.latency_millis, alone.first_token_millis, alone.error_percent) == (
        None,
        None,
        100,
    )


@pytest.mark.parametrize(
    ("figures", "state"),
    [
        (count(answers=9), "Healthy"),
        (count(failures=1, answers=99), "Healthy"),
        (count(failures=1, answers=9), "Degraded"),
        (count(failures=4), "Degraded"),
        (count(failures=5, answers=5), "Failing"),
        (count(answers=100, circuits=2, open_circuits=1), "Degraded"),
        (count(answers=100, circuits=2, open_circuits=2), "Failing"),
    ],
)
def test_state_follows_failures_and_circuits(figures: Figures, state: HealthState) -> None:
    assert show(figures).state == state


def test_noise_changes_nothing_that_is_shown() -> None:
    shown = show(count(failures=20, answers=80, seconds=0.5))
    assert show(count(failures=21, answers=84, seconds=0.55), shown) == shown
    assert show(count(failures=40, answers=80, seconds=0.5), shown).error_percent == 33
    assert show(count(failures=20, answers=80, seconds=0.9), shown).latency_millis == 900


def test_single_failure_shows_and_its_end_shows_too() -> None:
    shown = show(count(failures=1, answers=999))
    assert shown.error_percent == 1
    assert show(count(answers=1000), shown).error_percent == 0


def test_rejected_input_is_no_call_of_the_provider_and_denied_credentials_are_a_failure() -> None:
    tally = HealthTally()
    with pytest.raises(UpstreamRejected), tally.watch("p", "m"):
        raise UpstreamRejected("bad input")
    assert tally.sum().providers == {}
    with pytest.raises(UpstreamDenied), tally.watch("p", "m"):
        raise UpstreamDenied("refused")
    with tally.watch("p", "m"):
        pass
    for figures in (tally.sum().providers["p"], tally.sum().models["m"]):
        assert (figures.calls, figures.failures, figures.denials) == (2, 1, 1)


def test_calls_leave_the_figures_after_three_minutes() -> None:
    tally = HealthTally()
    tally.providers["p"].note_answer(1.0)
    for _ in range(PERIODS - 1):
        tally.turn()
    assert tally.sum().providers["p"].calls == 1
    tally.turn()
    assert tally.sum().providers == {}


async def test_reports_of_processes_are_summed_with_their_circuits() -> None:
    reports = FakeHealthReports()
    for process, is_open in (("api-1", True), ("api-2", False), ("operator", None)):
        tally = HealthTally()
        tally.providers["p"].note_answer(0.5)
        tally.models["m"].note_failure()
        await HealthReporter(tally, reports, process, lambda _, found=is_open: found).report()
    total = sum_reports(await reports.read())
    provider = total.providers["p"]
    assert (provider.calls, provider.seconds) == (3, 1.5)
    assert (provider.circuits, provider.open_circuits) == (2, 1)
    assert total.models["m"].failures == 3


async def test_lost_report_is_made_good_by_the_next() -> None:
    reports, tally = FakeHealthReports(), HealthTally()
    reporter = HealthReporter(tally, reports, "api-1")
    tally.providers["p"].note_answer(0.5)
    reports.away = True
    await reporter.report()
    reports.away = False
    tally.providers["p"].note_answer(0.5)
    await reporter.report()
    assert sum_reports(await reports.read()).providers["p"].calls == 2


async def test_process_without_calls_reports_nothing() -> None:
    reports = FakeHealthReports()
    await HealthReporter(HealthTally(), reports, "api-1").report()
    assert await reports.read() == []


@pytest.mark.parametrize("raw", [b"", b"[]", b'{"providers": {}}', b'{"providers": {"p": [1]*99}}'])
def test_report_of_another_release_counts_for_nothing(raw: bytes) -> None:
    report = decode_report(raw)
    assert (report.providers, report.models) == ({}, {})
