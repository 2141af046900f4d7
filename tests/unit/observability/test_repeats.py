"""One line for each cause and period, whatever repeats."""

import io
import json
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from gateway_core.concurrency import Supervisor
from gateway_core.observability.logs import configure_logging
from gateway_core.observability.repeats import MOST_CAUSES, PERIOD_SECONDS, RepeatHandler


class Log:
    """What the processes write, with a clock of its own."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._written = io.StringIO()
        (configured,) = logging.getLogger().handlers
        self.handler = RepeatHandler(self._written, clock=lambda: self.now)
        self.handler.setFormatter(configured.formatter)
        logging.getLogger().handlers[:] = [self.handler]

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._written.getvalue().splitlines()]

    def pass_period(self) -> None:
        self.now += PERIOD_SECONDS
        self.handler.write_repeats()


@pytest.fixture
def log() -> Iterator[Log]:
    root, before = logging.getLogger(), structlog.get_config()
    handlers, level = root.handlers[:], root.level
    configure_logging("info", "json")
    # a cached logger would keep this configuration for the tests that follow
    structlog.configure(cache_logger_on_first_use=False)
    made = Log()
    yield made
    made.handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.configure(**before)


def fail(task: str, error: str = "the API server is away") -> None:
    structlog.get_logger("queue").warning("work failed", object=task, error=error)


def test_failures_of_many_objects_by_one_cause_are_one_line_a_period(log: Log) -> None:
    for period in range(3):
        for number in range(500):
            fail(f"task-{number}", f"task-{number}: connection {period}{number} is closed")
        log.pass_period()
    first, *sums = log.lines
    assert first["object"] == "task-0"
    assert "repeated" not in first
    assert [line["repeated"] for line in sums] == [499, 500, 500]
    assert sums[0]["object"] == "task-499"


def test_cause_that_is_over_is_forgotten(log: Log) -> None:
    fail("task-1")
    log.pass_period()
    fail("task-2")
    assert [line["object"] for line in log.lines] == ["task-1", "task-2"]


def test_each_error_is_a_cause_of_its_own(log: Log) -> None:
    fail("task-1", "timed out")
    fail("task-1", "refused")
    structlog.get_logger("table").warning("work failed", error="refused")
    assert len(log.lines) == 3


def test_lines_of_libraries_are_counted_too(log: Log) -> None:
    for attempt in range(100):
        logging.getLogger("kopf").error("Request attempt #%d failed: GET /api/%d", attempt, attempt)
    log.pass_period()
    first, total = log.lines
    assert first["event"] == "Request attempt #0 failed: GET /api/0"
    assert total["event"].endswith("(repeated: 99)")


def test_lines_of_good_work_are_all_written(log: Log) -> None:
    for _ in range(50):
        structlog.get_logger("keys").info("key written", key="key-1")
    assert len(log.lines) == 50


def test_first_line_alone_has_the_traceback(log: Log) -> None:
    for _ in range(3):
        with Supervisor().guard("watch"):
            raise RuntimeError("File descriptor 25 is used by transport")
    log.pass_period()
    first, total = log.lines
    assert "Traceback" in first["exception"]
    assert total["repeated"] == 2
    assert "exception" not in total


def test_number_of_causes_is_bounded(log: Log) -> None:
    for number in range(10 * MOST_CAUSES):
        fail("task-1", "x" * number)
    assert len(log.lines) <= MOST_CAUSES + 1
    log.pass_period()
    assert len(log.lines) <= MOST_CAUSES + 2


def test_counted_repeats_are_written_at_the_end(log: Log) -> None:
    for _ in range(5):
        fail("task-1")
    log.handler.close()
    assert [line.get("repeated") for line in log.lines] == [None, 4]


def raise_first() -> None:
    raise ValueError("first defect")


def raise_second() -> None:
    raise ValueError("second defect")


@pytest.mark.parametrize("logger", ["structlog", "logging"])
def test_each_defect_has_its_traceback_while_another_recurs(log: Log, logger: str) -> None:
    write = (
        structlog.get_logger("edge").exception
        if logger == "structlog"
        else logging.getLogger("a.library").exception
    )
    for defect in (raise_first, raise_first, raise_second, raise_second):
        try:
            defect()
        except ValueError:
            write("request failed")
    first, second = log.lines
    assert "first defect" in first["exception"]
    assert "second defect" in second["exception"]


def test_long_word_is_recognised_without_delay(log: Log) -> None:
    begun = time.process_time()
    fail("task-1", "x" * 20_000)
    assert time.process_time() - begun < 2
    assert log.lines[-1]["error"] == "x" * 20_000
