"""Where a run of tests spent its time: by folder, the slowest tests, and what workers were idle.

For `tests/conftest.py`, in the controller of pytest-xdist or in a run of one process.
"""

import collections
import time
from dataclasses import dataclass, field
from typing import Any

SLOWEST = 20
PHASES = ("setup", "call", "teardown")


@dataclass
class Times:
    """Sums over the reports of a run, in seconds."""

    began: float = field(default_factory=time.time)
    busy: collections.Counter[str] = field(default_factory=collections.Counter)
    """By worker."""
    tests: collections.Counter[str] = field(default_factory=collections.Counter)
    """By the test's id, with its set-up and teardown."""
    folders: dict[str, collections.Counter[str]] = field(default_factory=dict)
    """By folder: `tests`, and the seconds of each phase."""

    def add(self, report: Any) -> None:
        """Add the report of one phase of a test."""
        # pytest-xdist says which worker a report is of
        node = getattr(report, "node", None)
        self.busy[node.gateway.id if node else "main"] += report.duration
        self.tests[report.nodeid] += report.duration
        folder = self.folders.setdefault(name_folder(report.nodeid), collections.Counter())
        folder[report.when] += report.duration
        folder["tests"] += report.when == "setup"

    def format(self, now: float) -> list[str]:
        """Return the lines of the summary."""
        whole = now - self.began
        lines = [f"{'folder':24} {'tests':>6}" + "".join(f"{phase:>10}" for phase in PHASES)]
        for name, sums in sorted(self.folders.items()):
            seconds = "".join(f"{sums[phase]:10.1f}" for phase in PHASES)
            lines.append(f"{name:24} {sums['tests']:6}{seconds}")
        lines += ["", f"slowest {SLOWEST} tests, with set-up and teardown:"]
        lines += [f"{spent:7.2f} s  {test}" for test, spent in self.tests.most_common(SLOWEST)]
        lines += ["", f"workers, of {whole:.0f} s (idle: start, collection, nothing left to run):"]
        for name, spent in sorted(self.busy.items()):
            lines.append(f"{name}: {spent:.0f} s in tests, {max(0, whole - spent):.0f} s idle")
        return lines


def name_folder(nodeid: str) -> str:
    """Return the folder of a test as the summary names it: `unit/llm`, `crash/files`, `ports`."""
    return "/".join(nodeid.partition("::")[0].removeprefix("tests/").split("/")[:-1]) or "."
