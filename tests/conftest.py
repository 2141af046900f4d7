"""Fixtures for several folders: a control plane without the gateway's processes, fault tallies."""

from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.crash.tallies import PROPERTY, Tally, format_summary
from tests.servers.control_plane import ControlPlane
from tests.servers.s3_server import S3Server

# what an example may take is no property of the code on a machine that others share
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """One for the session, and one for each worker of pytest-xdist."""
    with ControlPlane() as running:
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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tells how many trials of which faults were run, and how many violations they had."""
    told = [
        value
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "teardown"
        for name, value in report.user_properties
        if name == PROPERTY
    ]
    if told:
        terminalreporter.section("faults")
        for line in format_summary(told):
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """A real S3 server with an empty bucket; tests take a prefix each."""
    with S3Server() as running:
        yield running
