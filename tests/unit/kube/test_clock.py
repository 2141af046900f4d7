"""The clock of the record: it follows the API server's, within a second and a round trip."""

import random
from email.utils import formatdate
from unittest.mock import Mock

import pytest

from gateway_core.kube.clock import ServerClock, follow_clock

SERVER = 1_800_000_000.0
"""What the server's clock shows at the moment 0 of the monotonic one."""


class Machine:
    """A machine whose clock is `skew` ahead of the server's."""

    def __init__(self, skew: float) -> None:
        self.skew = skew
        self.passed = 0.0
        self.server_skew = 0.0
        self.clock = ServerClock(lambda: self.tell_server() + self.skew, lambda: self.passed)

    def tell_server(self) -> float:
        return SERVER + self.passed + self.server_skew

    def ask(self, there: float = 0.001, back: float = 0.001) -> None:
        """One exchange; the server dates its answer when it gets the request."""
        sent = self.passed
        self.passed += there
        date = formatdate(self.tell_server(), usegmt=True)
        self.passed += back
        self.clock.follow(date, sent)

    @property
    def error(self) -> float:
        return self.clock.time() - self.tell_server()


@pytest.mark.parametrize("skew", [-600.0, -3600.0, 600.0, 3600.0, 86_400.0])
def test_first_answer_corrects_wrong_clock_to_a_second_and_round_trip(skew: float) -> None:
    chance = random.Random(skew)
    for _ in range(200):
        machine = Machine(skew)
        machine.passed = chance.uniform(0, 10)
        there, back = chance.uniform(0, 0.5), chance.uniform(0, 0.5)
        machine.ask(there, back)
        assert abs(machine.error) <= 1 + there + back


@pytest.mark.parametrize("skew", [-600.0, 600.0])
def test_further_answers_narrow_the_error(skew: float) -> None:
    machine, chance = Machine(skew), random.Random(7)
    for _ in range(300):
        machine.passed += chance.uniform(0, 2)
        machine.ask()
    assert abs(machine.error) < 0.05


def test_clock_that_agrees_to_the_second_is_taken_as_it_is() -> None:
    machine, chance = Machine(0.0), random.Random(7)
    for _ in range(300):
        machine.passed += chance.uniform(0, 2)
        machine.ask()
        assert machine.error == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_step_of_the_machine_has_no_effect(step: float) -> None:
    machine = Machine(0.0)
    machine.ask()
    machine.skew += step
    machine.passed += 30
    assert machine.error == pytest.approx(0, abs=1e-6)
    assert machine.clock.skew == pytest.approx(step, abs=1e-6)
    machine.ask()
    assert machine.error == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_step_of_the_server_is_followed(step: float) -> None:
    machine = Machine(0.0)
    machine.ask()
    machine.server_skew += step
    machine.ask()
    assert abs(machine.error) <= 1.002


def test_monotonic_clock_that_stood_still_is_corrected() -> None:
    """As over a suspension of the machine."""
    machine = Machine(0.0)
    machine.ask()
    machine.server_skew += 5400
    machine.skew -= 5400
    machine.ask()
    assert abs(machine.error) <= 1.002


def test_late_reading_of_an_answer_moves_nothing() -> None:
    machine = Machine(0.0)
    machine.ask()
    machine.ask(there=30, back=60)
    assert machine.error == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("date", [None, "", "yesterday", "Fri, 99 Abc 2026 00:00:00 GMT"])
def test_answer_without_a_date_is_ignored(date: str | None) -> None:
    machine = Machine(600.0)
    machine.clock.follow(date, 0.0)
    assert machine.error == pytest.approx(600)


def test_clock_without_an_answer_is_that_of_the_machine() -> None:
    assert Machine(600.0).error == pytest.approx(600)


@pytest.mark.parametrize(
    ("status", "followed"),
    [(200, True), (201, True), (404, True), (409, True)]
    + [(status, False) for status in (302, 400, 401, 403, 407, 413, 429, 500, 502, 503)],
)
def test_only_statuses_of_the_api_server_set_the_clock(
    status: int, followed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ServerClock(lambda: SERVER + 600, lambda: 0.0)
    monkeypatch.setattr("gateway_core.kube.clock.CLOCK", clock)
    response = Mock(status=status, headers={"Date": formatdate(SERVER, usegmt=True)})
    follow_clock(response, 0.0)
    assert clock.time() == pytest.approx(SERVER + (1 if followed else 600))
