"""`make test-long`: the fault tests, part by part, each recorded as a line of JSON when it ends.

A part is a file of tests that opens a tally, or whose counts depend on FAULT_SHARE. Every part runs
in a pytest of its own, so a run can be ended at any time and go on with `--resume`.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tools.reliability import MATRIX, WHOLE, read_runs

from tests.faults.machine import Stopwatch

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path("docs", "reliability.jsonl")
FOLDERS_BY_NOUN = ("crash", "integration")
"""Whose parts are named without the noun, as in the recorded runs."""
_TALLY = re.compile(r"""tally\(\s*["']([A-Z]\d+)["']""")
_COUNTED = re.compile(r"\b(tally\(|IS_WHOLE\b|long_run\b|choose\(\")")


@dataclass(frozen=True)
class Part:
    """A file of tests, named by its path without what all have in common; and its rows."""

    name: str
    path: Path
    rows: tuple[str, ...]


def list_parts(root: Path = ROOT) -> list[Part]:
    """All parts, those of the matrix first, by their rows."""
    found = []
    for path in sorted((root / "tests").rglob("test_*.py")):
        text = path.read_text()
        if not _COUNTED.search(text):
            continue
        place = path.relative_to(root / "tests")
        name = str(place.with_name(place.stem.removeprefix("test_")))
        if place.parts[0] in FOLDERS_BY_NOUN:
            name = f"{place.parts[0]}/{Path(name).name}"
        found.append(Part(name, path.relative_to(root), tuple(sorted(set(_TALLY.findall(text))))))
    order = [row.name for row in MATRIX]
    return sorted(
        found,
        key=lambda part: min((order.index(r) for r in part.rows if r in order), default=len(order)),
    )


def choose(parts: Sequence[Part], rows: Sequence[str], names: Sequence[str]) -> list[Part]:
    """The parts that have one of the rows or names; all where neither is given. ValueError."""
    for row in rows:
        if not any(row in part.rows for part in parts):
            raise ValueError(f"no part has row {row!r}")
    for name in names:
        if not any(part.name.endswith(name) for part in parts):
            raise ValueError(f"there is no part {name!r}")
    return [
        part
        for part in parts
        if not (rows or names)
        or set(rows) & set(part.rows)
        or any(part.name == name or part.name.endswith(f"/{name}") for name in names)
    ]


def name_commit() -> str:
    """The commit that is checked out; `+` after it where files differ from it.

    The results are left out, since every part changes them.
    """

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()

    changed = git("status", "--porcelain", "--", ".", f":!{RESULTS}")
    return git("rev-parse", "--short=10", "HEAD") + ("+" if changed else "")


def run_part(part: Part, share: int, selection: str) -> tuple[dict[str, Any], bool]:
    """Runs pytest on a part; its record, and whether everything passed."""
    options = ["-k", selection] if selection else []
    command = ["pytest", "-p", "no:randomly", str(part.path), *options]
    began, commit = datetime.now(UTC), name_commit()
    with tempfile.NamedTemporaryFile(prefix="fault-events-") as events:
        # pytest of another run may have started this one as a worker of its own
        outside = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
        env = {**outside, "FAULT_SHARE": str(share), "FAULT_EVENTS": events.name}
        with Stopwatch() as timed:
            done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, env=env, check=False)
        told = [json.loads(line) for line in Path(events.name).read_text().splitlines()]
    failed = sorted({event["test"] for event in told if event["outcome"] == "failed"})
    record = {
        "part": f"{part.name} -k {selection}" if selection else part.name,
        "date": began.strftime("%Y-%m-%d %H:%M"),
        "commit": commit,
        "share": share,
        "minutes": round(timed.seconds / 60, 1),
        "others_busy": round(timed.others, 2),
        "cores": os.cpu_count(),
        "command": " ".join([f"FAULT_SHARE={share}", "python -m", *command]),
        "exit": done.returncode,
        "passed": sum(e["when"] == "call" and e["outcome"] == "passed" for e in told),
        "skipped": sum(event["outcome"] == "skipped" for event in told),
        "failed": failed,
        "tallies": list(merge(tally for event in told for tally in event["tallies"])),
    }
    return record, done.returncode == 0


def merge(tallies: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """One tally for each row and fault."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for tally in tallies:
        known = found.setdefault((tally["row"], tally["fault"]), tally)
        if known is tally:
            continue
        for name in ("trials", "violations", "judged", "not_judged", "swept"):
            known[name] += tally[name]
        known["complete"] &= tally["complete"]
        for name, value in tally["figures"].items():
            known["figures"][name] = max(value, known["figures"].get(name, value))
    yield from found.values()


def main() -> int:
    """Runs the parts asked for and records each; 1 where one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    words = {"type": lambda text: [word for word in text.split(",") if word], "default": []}
    parser.add_argument("--rows", help="those with one of these rows: F1,F2", **words)
    parser.add_argument("--parts", help="those of these names: failpoints,outages", **words)
    parser.add_argument("--select", default="", help="pytest's -k, within the parts")
    parser.add_argument("--share", type=int, default=WHOLE, help="per cent of the trials")
    parser.add_argument("--results", type=Path, default=ROOT / RESULTS, help="file to append to")
    parser.add_argument(
        "--resume", action="store_true", help="leave out what passed at this commit"
    )
    parser.add_argument("--list", action="store_true", help="show the parts and run nothing")
    given = parser.parse_args()
    try:
        chosen = choose(list_parts(), given.rows, given.parts)
    except ValueError as error:
        parser.error(str(error))
    runs = read_runs(given.results)
    if given.list:
        show(chosen, runs, given.share)
        return 0
    commit, failed = name_commit(), []
    done = {
        run["part"]
        for run in runs
        if (run["commit"], run["share"], run["exit"]) == (commit, given.share, 0)
    }
    for number, part in enumerate(chosen, 1):
        name = f"{part.name} -k {given.select}" if given.select else part.name
        if given.resume and name in done:
            continue
        print(f"== {number} of {len(chosen)}: {name} ({time.strftime('%H:%M')})", flush=True)
        record, has_passed = run_part(part, given.share, given.select)
        with given.results.open("a") as file:
            file.write(json.dumps(record) + "\n")
        if not has_passed:
            failed.append(name)
    print(f"\n{given.results}: {len(chosen)} parts; failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


def show(parts: Sequence[Part], runs: Sequence[dict[str, Any]], share: int) -> None:
    """One line a part: its rows, and how long its newest run with this share took."""
    for part in parts:
        took = [run["minutes"] for run in runs if (run["part"], run["share"]) == (part.name, share)]
        minutes = f"{took[-1]:6.1f} min" if took else "   not run"
        print(f"{part.name:<38} {','.join(part.rows) or '-':<12} {minutes}")


if __name__ == "__main__":
    sys.exit(main())
