"""Figures beside their bars: a table for people and JSON for programs."""

import json
import os
import platform
import subprocess
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def name_commit() -> str:
    """The commit that is checked out; empty where there is none."""
    done = subprocess.run(
        ["git", "rev-parse", "--short=10", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()


@dataclass
class Figure:
    """One measured value. `at_least` and `at_most` are its bar; without one it is information."""

    name: str
    value: float
    unit: str
    at_least: float | None = None
    at_most: float | None = None

    @property
    def passes(self) -> bool:
        return not (
            (self.at_least is not None and self.value < self.at_least)
            or (self.at_most is not None and self.value > self.at_most)
        )


@dataclass
class Report:
    """All figures of one run, and the stages that failed, written to `path` after each of them."""

    path: Path
    figures: list[Figure] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    commit: str = field(default_factory=name_commit)
    begun: str = field(default_factory=lambda: time.strftime("%Y-%m-%d %H:%M", time.gmtime()))

    def add(self, name: str, value: float, unit: str, **bar: float) -> None:
        """Adds a figure and prints it at once."""
        figure = Figure(name, round(value, 4), unit, **bar)
        self.figures.append(figure)
        print(_row(figure), flush=True)
        self._write()

    def fail(self, stage: str, error: str) -> None:
        """Notes that a stage ended early, and why."""
        self.failed[stage] = error
        print(f"{stage} FAILED: {error}", flush=True)
        self._write()

    def finish(self) -> bool:
        """Prints the sum; whether every stage came to its end and every bar is met."""
        self._write()
        short = [figure.name for figure in self.figures if not figure.passes]
        missed, failed = ", ".join(short) or "none", ", ".join(self.failed) or "none"
        print(f"\n{self.path}: {len(self.figures)} figures; short: {missed}; failed: {failed}")
        return not short and not self.failed

    def _write(self) -> None:
        document = {
            "date": self.begun,
            "commit": self.commit,
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.python_version()}",
            "failed": self.failed,
            "figures": [{**asdict(f), "passes": f.passes} for f in self.figures],
        }
        # a run that is killed while it writes leaves the last whole document
        fresh = self.path.with_suffix(".tmp")
        fresh.write_text(json.dumps(document, indent=2) + "\n")
        fresh.replace(self.path)


def _row(figure: Figure) -> str:
    bar = ""
    if figure.at_least is not None:
        bar = f">= {figure.at_least:g}"
    if figure.at_most is not None:
        bar = f"<= {figure.at_most:g}"
    verdict = "" if not bar else ("ok" if figure.passes else "SHORT")
    return f"{figure.name:<58} {figure.value:>10.4g} {figure.unit:<12} {bar:<9} {verdict}"
