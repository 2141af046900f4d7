"""Failpoints: nothing unless armed, and then the end at the step that was named."""

import os
import signal

import pytest

from gateway_apiserver import failpoints as of_the_api
from gateway_operator.context import NAMES, Failpoints
from tests.unit.operator import steps


@pytest.fixture
def kills(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    made: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: made.append((pid, number)))
    return made


@pytest.mark.parametrize("name", NAMES)
def test_unarmed_steps_are_passed(name: str, kills: list[tuple[int, int]]) -> None:
    Failpoints().reach(name)
    assert kills == []


def test_simulations_kill_at_every_named_step() -> None:
    tables = {name: value for name, value in vars(steps).items() if name.endswith("_STEPS")}
    assert {step for table in tables.values() for step in table} == set(NAMES)


def test_armed_step_kills_as_kill_9_does(kills: list[tuple[int, int]]) -> None:
    Failpoints("after-submit").reach("after-submit")
    assert kills == [(os.getpid(), signal.SIGKILL)]


def test_step_kills_when_it_is_reached_so_often(kills: list[tuple[int, int]]) -> None:
    points = Failpoints("after-submit:3,before-intent")
    points.reach("after-submit")
    points.reach("after-submit")
    assert kills == []
    points.reach("after-submit")
    assert len(kills) == 1
    points.reach("before-intent")
    assert len(kills) == 2


def test_step_can_halt_once(kills: list[tuple[int, int]]) -> None:
    points = Failpoints("after-intent:2:stop")
    for _ in range(5):
        points.reach("after-intent")
    assert kills == [(os.getpid(), signal.SIGSTOP)]


def test_unknown_step_is_refused() -> None:
    with pytest.raises(ValueError, match="no failpoint is called 'nowhere'"):
        Failpoints("nowhere")


def test_processes_have_different_steps(kills: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="no failpoint"):
        of_the_api.Failpoints("after-submit")
    of_the_api.Failpoints("after-create").reach("after-create")
    assert len(kills) == 1
