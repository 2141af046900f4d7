"""The fault matrix, the recorded runs of its rows, and the tables of docs/reliability.md.

`make test-long` appends one line of JSON for each part that it has run (`tests/faults`);
`make generate` renders the tables from docs/reliability.jsonl.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.reference.tables import build_table

WHOLE = 100


@dataclass(frozen=True)
class Row:
    """One row of the fault matrix. `goal` is the number of trials that it asks for."""

    name: str
    fault: str
    goal: int
    promise: str


MATRIX = (
    Row("F1", "kill -9 at each named step of API and operator", 350, "I1 to I7, I9"),
    Row("F2", "kill -9 at random of each of six processes under load", 300, "I1, I2, I7, I9"),
    Row("F3", "etcd, kube-apiserver away for 5, 60, 300 s", 60, "503 within 2 s; I9; heals"),
    Row("F4", "watch cut, history compacted, 1,000 deletes meanwhile", 20, "caches equal record"),
    Row("F5", "Redis emptied, away for a minute, failed over", 30, "I7; 503, never unlimited"),
    Row("F6", "eight faults of a provider", 4000, "I1, I2; stuck jobs end at the deadline"),
    Row("F7", "eight faults of callback receivers", 1400, "I4; no byte to denied addresses"),
    Row("F8", "120 hostile URLs at each place that takes one", 360, "no connect"),
    Row("F9", "SIGSTOP of a shard's owner over a takeover; two owners", 50, "I2, I3"),
    Row("F10", "clock of one process 10 min off", 20, "nothing expires early"),
    Row("F11", "latency, resets, 10 kB/s, half-open on each of five links", 200, "I1 to I7"),
    Row("F12", "S3: SlowDown, truncated GET, lost answer of a PUT", 100, "I5; no orphan stays"),
    Row("F13", "completions, cancels and expiry of an Upload at once", 2000, "I5, I6"),
    Row("F14", "one Idempotency-Key 64 ways at once", 12800, "200 tasks, the rest replays"),
    Row("F15", "500 calls at the edge of a limit at three APIs", 100, "I7"),
    Row("F23", "clients leave at any moment of an LLM call", 1000, "I7; nothing stays open"),
    Row("F24", "framing attacks, direct and on shared connections", 1200, "I8; RFC 9112"),
    Row("F25", "operator killed, Redis emptied while callbacks are pending", 5, "I4, I7, I9, I12"),
    Row("F26", "ended tasks restored without their status", 80, "I2, I3, I4, I7"),
    Row("F27", "etcd restored to an earlier state under processes", 2, "I7; followed in 60 s"),
    Row("F28", "namespace, CRDs or everything removed, in any order", 4, "jobs stop; ends in 60 s"),
    Row("F29", "operator killed while an account is removed", 3, "its successor has nothing of it"),
    Row("F30", "Redis demoted behind its name, rejected writes", 39, "I7; one failed call"),
    Row("F31", "Redis evicts keys", 500_000, "I7"),
    Row("F32", "task cancelled while the operator is killed", 100, "I2, I3, I7"),
    Row("F33", "operator killed while rows of the audit are archived", 3, "each row once"),
)


@dataclass
class Count:
    """Counts of one fault, or of a whole row, and the newest run that they come from."""

    trials: int = 0
    violations: int = 0
    judged: int = 0
    not_judged: int = 0
    swept: int = 0
    broken: int = 0
    """Tests that failed beside their count."""
    figures: dict[str, float] = field(default_factory=dict)
    runs: list[dict[str, Any]] = field(default_factory=list)

    def add(self, other: "Count") -> None:
        """Add the counts of another."""
        for name in ("trials", "violations", "judged", "not_judged", "swept", "broken"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name, value in other.figures.items():
            self.figures[name] = max(value, self.figures.get(name, value))
        self.runs += [run for run in other.runs if run not in self.runs]

    @property
    def shown_not_judged(self) -> str:
        """The trials that were not judged; empty where none is judged."""
        judged = self.judged + self.not_judged
        return f"{self.not_judged} of {judged:,}" if judged else ""

    @property
    def shown_runs(self) -> str:
        """Dates and commits, each pair once."""
        pairs = sorted({(run["date"], run["commit"]) for run in self.runs})
        return ", ".join(f"{date} `{commit}`" for date, commit in pairs)


def read_runs(path: Path) -> list[dict[str, Any]]:
    """Return the recorded runs, oldest first; empty where there is no file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def render(introduction: str, runs: list[dict[str, Any]]) -> str:
    """Return docs/reliability.md: the introduction with the tables in the places it names."""
    for name, show in (
        ("rows", render_rows),
        ("faults", render_faults),
        ("earlier", render_earlier),
    ):
        introduction = introduction.replace(f"<!-- {name} -->", show(runs))
    return introduction


def count_faults(runs: Iterable[dict[str, Any]]) -> dict[tuple[str, str], Count]:
    """Return by row and fault the tallies of the newest run that has the fault."""
    counts: dict[tuple[str, str], Count] = {}
    for run in runs:
        fresh: dict[tuple[str, str], Count] = {}
        for tally in run["tallies"]:
            sums = {name: tally[name] for name in ("trials", "violations", "judged", "not_judged")}
            broken = not tally["complete"] and not tally["violations"]
            count = Count(**sums, swept=tally["swept"], broken=broken, figures=tally["figures"])
            count.runs.append(run)
            fresh.setdefault((tally["row"], tally["fault"]), Count()).add(count)
        counts |= fresh
    return counts


def _count_whole(runs: list[dict[str, Any]]) -> dict[tuple[str, str], Count]:
    return count_faults(run for run in runs if run["share"] == WHOLE)


def _sum_rows(counts: dict[tuple[str, str], Count]) -> dict[str, Count]:
    rows: dict[str, Count] = {}
    for (row, _), count in counts.items():
        rows.setdefault(row, Count()).add(count)
    return rows


def render_rows(runs: list[dict[str, Any]]) -> str:
    """Return the matrix: one line a row, from the newest whole run of each of its faults."""
    whole = _sum_rows(_count_whole(runs))
    usual = _sum_rows(count_faults(run for run in runs if run["share"] < WHOLE))
    rows = []
    for row in MATRIX:
        trials = usual.get(row.name, Count()).trials
        in_test = f"{trials:,}" if trials else ""
        cells = [row.name, row.fault, row.promise, f"{row.goal:,}"]
        if count := whole.get(row.name):
            broken = f" + {count.broken} broken off" if count.broken else ""
            cells += [f"{count.trials:,}", f"{count.violations}{broken}", count.shown_not_judged]
            cells += [str(count.swept), in_test, count.shown_runs]
            rows.append([*cells, f"`make test-long ROWS={row.name}`"])
        else:
            rows.append([*cells, "not run", "", "", "", in_test, "", ""])
    head = ("Row", "Fault", "Holds", "Goal", "Trials", "Violations", "Not judged", "Swept")
    return build_table((*head, "In `make test`", "Run", "Command"), rows)


def render_faults(runs: list[dict[str, Any]]) -> str:
    """Return every fault with its newest whole run, and what was noted beside the count."""
    whole = _count_whole(runs)
    rows = []
    for row, fault in sorted(whole, key=lambda key: (key[0][:1], int(key[0][1:]), key[1])):
        count = whole[row, fault]
        broken = " (broken off)" if count.broken else ""
        figures = ", ".join(f"{name} {value:g}" for name, value in count.figures.items())
        cells = [row, fault, f"{count.trials:,}", f"{count.violations}{broken}"]
        cells += [count.shown_not_judged, str(count.swept), figures, count.shown_runs]
        rows.append([*cells, count.runs[0]["part"]])
    head = ("Row", "Fault", "Trials", "Violations", "Not judged", "Swept", "Worst figures", "Run")
    return build_table((*head, "Part"), rows)


def render_earlier(runs: list[dict[str, Any]]) -> str:
    """Return whole runs with violations that a newer run of the same fault has replaced."""
    newest = _count_whole(runs)
    lines = []
    for run in (run for run in runs if run["share"] == WHOLE):
        for tally in run["tallies"]:
            if run in newest[tally["row"], tally["fault"]].runs:
                continue
            if tally["violations"] or not tally["complete"]:
                what = f"{tally['violations']} violations" if tally["violations"] else "broken off"
                lines.append(
                    f"* {tally['row']}, {tally['fault']}: {what} in {tally['trials']:,} trials "
                    f"({run['date']}, `{run['commit']}`)"
                )
    return "\n".join(lines) or "None."
