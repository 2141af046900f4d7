"""The fault matrix, the recorded runs of its rows, and the tables of docs/reliability.md.

`make test-long` appends one line of JSON for each part that it has run (`tests/faults`);
`make generate` renders the tables from docs/reliability.jsonl.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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

    def add(self, tally: dict[str, Any], run: dict[str, Any]) -> None:
        """Adds a tally of a run."""
        for name in ("trials", "violations", "judged", "not_judged", "swept"):
            setattr(self, name, getattr(self, name) + tally[name])
        self.broken += not tally["complete"] and not tally["violations"]
        for name, value in tally["figures"].items():
            self.figures[name] = max(value, self.figures.get(name, value))
        if run not in self.runs:
            self.runs.append(run)


def read_runs(path: Path) -> list[dict[str, Any]]:
    """The recorded runs, oldest first; empty where there is no file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def render(introduction: str, runs: list[dict[str, Any]]) -> str:
    """docs/reliability.md: the introduction with the tables in the places it names."""
    tables = {
        "<!-- rows -->": render_rows(runs),
        "<!-- faults -->": render_faults(runs),
        "<!-- earlier -->": render_earlier(runs),
    }
    for place, table in tables.items():
        introduction = introduction.replace(place, table)
    return introduction


def count_faults(runs: Iterable[dict[str, Any]]) -> dict[tuple[str, str], Count]:
    """By row and fault: the tallies of the newest run that has the fault."""
    found: dict[tuple[str, str], Count] = {}
    for run in runs:
        fresh: dict[tuple[str, str], Count] = {}
        for tally in run["tallies"]:
            fresh.setdefault((tally["row"], tally["fault"]), Count()).add(tally, run)
        found |= fresh
    return found


def render_rows(runs: list[dict[str, Any]]) -> str:
    """The matrix: one line a row, from the newest whole run of each of its faults."""
    whole = count_faults(run for run in runs if run["share"] == WHOLE)
    usual = count_faults(run for run in runs if run["share"] < WHOLE)
    lines = [
        "| Row | Fault | Holds | Goal | Trials | Violations | Not judged | Swept "
        "| In `make test` | Run | Command |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in MATRIX:
        counts = [count for (name, _), count in whole.items() if name == row.name]
        usually = sum(c.trials for (name, _), c in usual.items() if name == row.name)
        in_test = f"{usually:,}" if usually else ""
        cells = [row.name, row.fault, row.promise, f"{row.goal:,}"]
        if not counts:
            lines.append(_line(*cells, "not run", "", "", "", in_test, "", ""))
            continue
        sums = {
            name: sum(getattr(count, name) for count in counts)
            for name in ("trials", "violations", "judged", "not_judged", "swept", "broken")
        }
        broken = f" + {sums['broken']} broken off" if sums["broken"] else ""
        judged = sums["judged"] + sums["not_judged"]
        cells += [f"{sums['trials']:,}", f"{sums['violations']}{broken}"]
        cells += [f"{sums['not_judged']} of {judged:,}" if judged else "", str(sums["swept"])]
        cells += [in_test, _name_runs(counts), f"`make test-long ROWS={row.name}`"]
        lines.append(_line(*cells))
    return "\n".join(lines)


def render_faults(runs: list[dict[str, Any]]) -> str:
    """Every fault with its newest whole run, and what was noted beside the count."""
    lines = [
        "| Row | Fault | Trials | Violations | Not judged | Swept | Worst figures | Run | Part |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    whole = count_faults(run for run in runs if run["share"] == WHOLE)
    for (row, fault), count in sorted(whole.items(), key=lambda entry: _in_order(*entry[0])):
        figures = ", ".join(f"{name} {value:g}" for name, value in count.figures.items())
        broken = " (broken off)" if count.broken else ""
        judged = count.judged + count.not_judged
        lines.append(
            _line(
                *(row, fault, f"{count.trials:,}", f"{count.violations}{broken}"),
                *(f"{count.not_judged} of {judged:,}" if judged else "", str(count.swept)),
                *(figures, _name_runs([count]), count.runs[0]["part"]),
            )
        )
    return "\n".join(lines)


def render_earlier(runs: list[dict[str, Any]]) -> str:
    """Whole runs with violations that a newer run of the same fault has replaced."""
    newest = count_faults(run for run in runs if run["share"] == WHOLE)
    lines = []
    for run in runs:
        for tally in run["tallies"]:
            is_newest = run in newest[tally["row"], tally["fault"]].runs if _is_whole(run) else True
            if _is_whole(run) and not is_newest and (tally["violations"] or not tally["complete"]):
                what = f"{tally['violations']} violations" if tally["violations"] else "broken off"
                lines.append(
                    f"* {tally['row']}, {tally['fault']}: {what} in {tally['trials']:,} trials "
                    f"({run['date']}, `{run['commit']}`)"
                )
    return "\n".join(lines) or "None."


def _is_whole(run: dict[str, Any]) -> bool:
    return bool(run["share"] == WHOLE)


def _name_runs(counts: Iterable[Count]) -> str:
    """Dates and commits, each pair once."""
    pairs = {(run["date"], run["commit"]) for count in counts for run in count.runs}
    return ", ".join(f"{date} `{commit}`" for date, commit in sorted(pairs))


def _line(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _in_order(row: str, fault: str) -> tuple[str, int, str]:
    return row[:1], int(row[1:]), fault
