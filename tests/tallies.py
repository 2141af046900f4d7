"""Counts of trials and violations by fault row, shown at the end of the run; the goal is 0.

A trial that fails does not end its test: the others are still run, so that the count means
something, and the history of what clients and provider saw is kept in a file.
"""

import json
import os
import secrets
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.machine import Stopwatch
from tests.servers.world import Client, list_tasks

MOST_VIOLATIONS = 3
"""A test gives up after that many: what is broken then breaks what follows."""

PROPERTY = "fault tally"


@dataclass
class Tally:
    """One fault of one row, e.g. `F2`, `kill -9 of redis`.

    `figures` are what is worth knowing beside the count, the worst of each: `tally.note("back in
    s", 3.2)`. `judged` and `not_judged` count the times that were compared with a bound of the
    contract, and those beyond it on a machine that others kept busy. `swept` counts reservations
    that only the sweeper ended. `complete` says that the test came to its end.
    """

    row: str
    fault: str
    trials: int = 0
    violations: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    judged: int = 0
    not_judged: int = 0
    swept: int = 0
    complete: bool = False

    def judge(
        self, name: str, timed: Stopwatch, *, at_most: float, seconds: float | None = None
    ) -> None:
        """Compares a time with its bound in seconds; AssertionError beyond it on an idle machine.

        On a machine that others keep busy it is counted as not judged, up to SAFETY times the
        bound. `seconds` is given where the time is not the whole of what was `timed`.
        """
        self.note(name, timed.seconds if seconds is None else seconds)
        if timed.meets(name, at_most, seconds):
            self.judged += 1
        else:
            self.not_judged += 1

    def note(self, name: str, value: float) -> None:
        """Keeps the largest value."""
        self.figures[name] = max(value, self.figures.get(name, value))

    @asynccontextmanager
    async def trial(self, client: Client | None = None, *, count: int = 1) -> AsyncIterator[None]:
        """Runs a block as `count` trials; an AssertionError in it is a violation.

        Of a violation the client's history, the provider's and the record's are kept.
        """
        try:
            yield
        except AssertionError as error:
            kept = "" if client is None else f" (history: {await keep_history(client, error)})"
            self.violate(f"{error}{kept}")
        finally:
            self.trials += count
        self._give_up_on(MOST_VIOLATIONS)

    def violate(self, text: str) -> None:
        """Counts a violation."""
        self.violations.append(text)

    def check(self) -> None:
        """Fails the test if there was a violation; the last statement of each."""
        self._give_up_on(1)
        self.complete = True

    def describe(self) -> dict[str, Any]:
        """As JSON, for the report."""
        return {
            "row": self.row,
            "fault": self.fault,
            "trials": self.trials,
            "violations": len(self.violations),
            "judged": self.judged,
            "not_judged": self.not_judged,
            "swept": self.swept,
            "complete": self.complete,
            "figures": {name: round(value, 2) for name, value in self.figures.items()},
        }

    def _give_up_on(self, most: int) -> None:
        if len(self.violations) >= most:
            text = "\n".join(self.violations)
            raise AssertionError(
                f"{self.row}, {self.fault}: {len(self.violations)} violations "
                f"in {self.trials} trials:\n{text}"
            )


async def keep_history(client: Client, error: BaseException) -> Path:
    """Writes what the client was told, what the provider saw and what is recorded; the file."""
    folder = Path(os.environ.get("GATEWAY_FAULTS_DIR") or tempfile.gettempdir(), "gateway-faults")
    folder.mkdir(parents=True, exist_ok=True)
    document: dict[str, Any] = {
        "error": [str(error), *getattr(error, "__notes__", ())],
        "accepted": client.history.accepted,
        "polled": client.history.polled,
    }
    # what has been killed may still be away
    with suppress(Exception):
        document["provider"] = await client.read_simulator()
    with suppress(Exception):
        document["record"] = list_tasks(client.world)
    path = folder / f"history-{int(time.time())}-{secrets.token_hex(3)}.json"
    path.write_text(json.dumps(document, indent=1))
    return path


_SUMS = ("trials", "violations", "not_judged", "swept")


def format_summary(tallies: Iterable[dict[str, Any]]) -> list[str]:
    """The table for the end of the run: one line a fault, one for the sum."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    sums: dict[str, int] = defaultdict(int)
    for tally in tallies:
        fresh = {**tally, **dict.fromkeys(_SUMS, 0)}
        known = rows.setdefault((tally["row"], tally["fault"]), fresh)
        for name in _SUMS:
            known[name] += tally.get(name, 0)
            sums[name] += tally.get(name, 0)
    lines = [_format("row", "fault", {name: name.replace("_", " ") for name in _SUMS})]
    for (row, fault), tally in sorted(rows.items(), key=_in_order):
        figures = ", ".join(f"{name} {value:g}" for name, value in tally["figures"].items())
        lines.append(f"{_format(row, fault, tally)}  {figures}".rstrip())
    lines.append(_format("", "all (goal: 0 violations)", sums))
    return lines


def _format(row: str, fault: str, counts: Mapping[str, Any]) -> str:
    return f"{row:<4} {fault:<52} " + " ".join(f"{counts[name]:>10}" for name in _SUMS)


def _in_order(entry: tuple[tuple[str, str], Any]) -> tuple[int, str]:
    (row, fault), _ = entry
    return int(row[1:]), fault
