"""Figures beside their bars: a table for people and JSON for programs."""

import json
import platform
from dataclasses import asdict, dataclass, field
from pathlib import Path


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
        """Whether the bar is met."""
        return not (
            (self.at_least is not None and self.value < self.at_least)
            or (self.at_most is not None and self.value > self.at_most)
        )


@dataclass
class Report:
    """All figures of one run."""

    figures: list[Figure] = field(default_factory=list)

    def add(self, name: str, value: float, unit: str, **bar: float) -> None:
        """Adds a figure and prints it at once."""
        figure = Figure(name, round(value, 4), unit, **bar)
        self.figures.append(figure)
        print(_row(figure), flush=True)

    def finish(self, path: Path) -> bool:
        """Writes the JSON; whether every bar is met."""
        document = {
            "machine": f"{platform.machine()}, {platform.python_version()}",
            "figures": [{**asdict(f), "passes": f.passes} for f in self.figures],
        }
        path.write_text(json.dumps(document, indent=2) + "\n")
        short = [figure.name for figure in self.figures if not figure.passes]
        print(f"\n{path}: {len(self.figures)} figures; falls short: {', '.join(short) or 'none'}")
        return not short


def _row(figure: Figure) -> str:
    bar = ""
    if figure.at_least is not None:
        bar = f">= {figure.at_least:g}"
    if figure.at_most is not None:
        bar = f"<= {figure.at_most:g}"
    verdict = "" if not bar else ("ok" if figure.passes else "SHORT")
    return f"{figure.name:<58} {figure.value:>10.4g} {figure.unit:<12} {bar:<9} {verdict}"
