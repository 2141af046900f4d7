"""The harness of a run of tests: its servers, its tiers, and what it says of its time."""

import os
import sys
from types import SimpleNamespace

import pytest

from tests.servers.deadline import Deadline
from tests.servers.forking import may_fork
from tests.tiers import rank
from tests.timing import Times

MODULE = (sys.executable, "-m", "gateway_simulator")


@pytest.mark.parametrize(
    ("command", "changes", "forks"),
    [
        (MODULE, {}, True),
        (MODULE, {"PYTHONUNBUFFERED": "1"}, True),
        (MODULE, {"PYTHONPATH": "/elsewhere"}, False),
        (MODULE, {"LD_PRELOAD": "/lib/clock.so"}, False),
        (("redis-server", "--port", "1"), {}, False),
        ((sys.executable, "-c", "pass"), {}, False),
    ],
)
def test_only_plain_modules_of_this_interpreter_are_forked(command, changes, forks) -> None:
    assert may_fork(command, {**os.environ, **changes}) is forks


def test_tests_are_ordered_by_the_place_of_their_folder() -> None:
    ids = [
        f"tests/{folder}/test_x.py::test_y" for folder in ("unit", "crash", "ports", "callbacks")
    ]
    assert sorted(ids, key=rank) == [ids[1], ids[3], ids[2], ids[0]]


def test_summary_has_time_by_folder_by_test_and_by_worker() -> None:
    times = Times(began=0)
    worker = SimpleNamespace(gateway=SimpleNamespace(id="gw0"))
    for when, duration in (("setup", 1.0), ("call", 2.5), ("teardown", 0.5)):
        nodeid = "tests/crash/files/test_x.py::test_y"
        times.add(SimpleNamespace(node=worker, nodeid=nodeid, when=when, duration=duration))
    lines = times.format(now=10)
    assert lines[1].split() == ["crash/files", "1", "1.0", "2.5", "0.5"]
    assert "   4.00 s  tests/crash/files/test_x.py::test_y" in lines
    assert lines[-1] == "gw0: 4 s in tests, 6 s idle"


def test_stall_between_two_looks_uses_up_little_of_a_deadline(monkeypatch) -> None:
    times = iter((0.0, 41.0, 41.4, 41.8, 42.2))
    monkeypatch.setattr("time.monotonic", lambda: next(times))
    deadline = Deadline(1.5)
    assert [deadline.is_over() for _ in range(4)] == [False, False, False, True]
