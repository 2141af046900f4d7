"""The tiers and times of a run of tests, and fixtures for several folders.

The fixtures: a control plane without the gateway's processes, and tallies of faults.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings

from gateway_core.kube import transport
from gateway_core.kube.clock import CLOCK
from tests.servers.clocks import find_pause
from tests.servers.control_plane import ControlPlane, Lender, borrow
from tests.servers.s3 import S3Server
from tests.shares import IS_WHOLE, SHARE
from tests.tallies import PROPERTY, Tally, format_summary
from tests.tiers import mark_full, rank
from tests.timing import Times

# what an example may take is no property of the code on a machine that others share
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")

# of the tests' own Kubernetes clients: a machine may stand still for seconds
transport.CONNECT_SECONDS = 30.0

# structlog's own default draws every local variable of a traceback, which takes seconds each
structlog.configure(
    processors=[
        structlog.processors.add_log_level,
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)


LENDER = pytest.StashKey[Lender]()
TIMES = Times()


@pytest.fixture(autouse=True)
def clock_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin each test with a clock that has followed no API server, as a process does."""
    monkeypatch.setattr(CLOCK, "_zero", None)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker, before it starts, where it borrows the control plane."""
    stash = node.config.stash
    if LENDER not in stash:
        stash[LENDER] = Lender()
    node.workerinput["lender"] = stash[LENDER].address


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the control plane, in the controller of the workers."""
    lender = config.stash.get(LENDER, None)
    if lender is not None:
        lender.close()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Mark the tests of the full tier, and put the groups in order after pytest-randomly."""
    mark_full(items)
    yield
    items.sort(key=lambda item: rank(item.nodeid))


@pytest.fixture
def one_day() -> None:
    """For tests of a day's figures that take up to a minute: it does not end meanwhile."""
    time.sleep(find_pause(datetime.now(UTC), 60))


@pytest.fixture(scope="session")
def control_plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """The one control plane of the run, with a namespace for each worker of pytest-xdist."""
    worker: dict[str, Any] | None = getattr(request.config, "workerinput", None)
    with ControlPlane(worker and borrow(worker["lender"])) as running:
        yield running


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Iterator[Callable[[str, str], Tally]]:
    """Opens a tally, `tally("F2", "kill -9 of redis")`, that the run's summary shows."""
    opened: list[Tally] = []

    def open_tally(row: str, fault: str) -> Tally:
        opened.append(Tally(row, fault))
        return opened[-1]

    yield open_tally
    # goes with the report of the fixture's end, also from a worker of pytest-xdist
    request.node.user_properties += [(PROPERTY, entry.describe()) for entry in opened]


def list_tallies(report: Any) -> list[dict[str, Any]]:
    """The tallies in a report of a test's teardown."""
    if getattr(report, "when", None) != "teardown":
        return []
    return [value for name, value in report.user_properties if name == PROPERTY]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add a test's time, and append outcome and tallies to the file that `tests.faults` reads.

    A run that is killed keeps what had ended by then.
    """
    # a worker's reports are logged once more by its controller
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    TIMES.add(report)
    path = os.environ.get("FAULT_EVENTS")
    tallies = list_tallies(report)
    says_something = report.when == "call" or report.outcome != "passed" or tallies
    if path and says_something:
        event = {
            "test": report.nodeid,
            "when": report.when,
            "outcome": report.outcome,
            "tallies": tallies,
        }
        with Path(path).open("a") as file:
            file.write(json.dumps(event) + "\n")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say where the time went, and how many trials of faults were run with which violations."""
    if len(TIMES.tests) > 1:
        terminalreporter.section("times")
        for line in TIMES.format(time.time()):
            terminalreporter.write_line(line)
    told = [
        tally
        for reports in terminalreporter.stats.values()
        for report in reports
        for tally in list_tallies(report)
    ]
    if told:
        terminalreporter.section("faults")
        terminalreporter.write_line(
            f"{SHARE} % of the trials"
            + ("" if IS_WHOLE else ", each step at least once (make test-long runs all)")
        )
        for line in format_summary(told):
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """A real S3 server with an empty bucket; tests take a prefix each."""
    with S3Server() as running:
        yield running
