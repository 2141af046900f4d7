"""Recorded runs of the fault matrix: its parts, how they are run, counted and shown."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tools.reliability import MATRIX, count_faults, read_runs, render_earlier, render_rows

from tests.faults.__main__ import ROOT, Part, choose, list_parts, merge
from tests.faults.machine import Stopwatch, read_machine
from tests.tallies import Tally


def make_run(*tallies, share=100, commit="abc", date="2026-01-01 10:00"):
    return {
        "part": "crash/outages",
        "date": date,
        "commit": commit,
        "share": share,
        "tallies": [tally.describe() for tally in tallies],
    }


def make_tally(row, fault, trials, violations=0, *, complete=True, **changes):
    tally = Tally(row, fault, trials, ["I1"] * violations, complete=complete)
    for name, value in changes.items():
        setattr(tally, name, value)
    return tally


def find_row(text, name):
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_every_row_of_the_matrix_has_a_part():
    rows = {row for part in list_parts() for row in part.rows}
    missing = {row.name for row in MATRIX} - rows
    assert missing == set()


def test_tests_of_the_long_run_alone_are_parts_and_named_in_the_document():
    document = (ROOT / "docs" / "reliability.in.md").read_text()
    for part in list_parts():
        if re.search(r"^(pytestmark .*|@)\blong_run\b", (ROOT / part.path).read_text(), re.M):
            assert f"`{part.path}`" in document


def test_parts_have_names_of_their_own():
    names = [part.name for part in list_parts()]
    assert len(set(names)) == len(names)
    assert {"crash/owners", "integration/timing"} <= set(names)


def test_parts_are_chosen_by_row_and_by_name():
    parts = [
        Part("crash/outages", Path("a"), ("F3",)),
        Part("callbacks/faults", Path("b"), ("F7", "F8")),
        Part("crash/rolling", Path("c"), ()),
    ]
    assert choose(parts, ["F3"], []) == parts[:1]
    assert choose(parts, ["F3"], ["faults"]) == parts[:2]
    assert choose(parts, [], ["crash/rolling"]) == parts[2:]
    assert choose(parts, [], []) == parts
    with pytest.raises(ValueError, match="F99"):
        choose(parts, ["F99"], [])
    with pytest.raises(ValueError, match="nonesuch"):
        choose(parts, [], ["nonesuch"])


def test_newest_run_of_a_fault_counts():
    old = make_run(make_tally("F3", "etcd", 10, 2), make_tally("F3", "apiserver", 7), commit="old")
    new = make_run(make_tally("F3", "etcd", 10), commit="new")
    counts = count_faults([old, new])
    assert counts["F3", "etcd"].violations == 0
    assert counts["F3", "etcd"].runs == [new]
    assert counts["F3", "apiserver"].trials == 7


def test_rows_show_counts_of_whole_runs_and_those_of_make_test():
    whole = make_run(
        make_tally("F3", "etcd", 30, 1, judged=5, not_judged=2, swept=3),
        make_tally("F3", "apiserver", 30, complete=False),
    )
    usual = make_run(make_tally("F3", "etcd", 2), share=4)
    text = render_rows([whole, usual])
    cells = find_row(text, "F3")
    assert cells[3:9] == ["60", "60", "1 + 1 broken off", "2 of 7", "3", "2"]
    assert "not run" in find_row(text, "F2")


def test_violations_of_replaced_runs_stay_visible():
    old = make_run(make_tally("F3", "etcd", 10, 2), commit="old")
    broken = make_run(make_tally("F3", "etcd", 4, complete=False), commit="broken")
    new = make_run(make_tally("F3", "etcd", 10), commit="new")
    told = render_earlier([old, broken, new]).splitlines()
    assert len(told) == 2
    assert "2 violations in 10 trials" in told[0]
    assert "broken off in 4 trials" in told[1]
    assert render_earlier([new]) == "None."


def test_tallies_of_one_fault_are_merged():
    first, second = make_tally("F1", "a", 2, 1), make_tally("F1", "a", 3, complete=False)
    first.note("s", 2.0)
    second.note("s", 5.0)
    (merged,) = merge(iter([first.describe(), second.describe()]))
    assert (merged["trials"], merged["violations"], merged["complete"]) == (5, 1, False)
    assert merged["figures"] == {"s": 5.0}


def readings(seconds, machine, own):
    return iter([(0.0, 100.0, 50.0), (seconds, 100.0 + machine, 50.0 + own)])


@pytest.mark.parametrize(("machine", "own", "is_idle"), [(0.9, 0.9, True), (1.9, 0.9, False)])
def test_only_cpu_of_others_makes_a_machine_busy(monkeypatch, machine, own, is_idle):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    values = readings(1.0, machine, own)
    with Stopwatch(lambda: next(values)) as timed:
        pass
    assert timed.others == pytest.approx((machine - own) / 2)
    assert timed.is_idle is is_idle


async def test_time_beyond_its_bound_is_judged_on_an_idle_machine_only():
    tally = Tally("F3", "an example")
    for others, seconds in ((0.0, 1.9), (0.9, 1.9), (0.9, 5.0)):
        timed = Stopwatch()
        timed.seconds, timed.others = seconds, others
        async with tally.trial():
            tally.judge("s", timed, at_most=2)
    assert (tally.judged, tally.not_judged, tally.violations) == (2, 1, [])
    for others, seconds in ((0.0, 2.1), (0.9, 12.1)):
        timed.seconds, timed.others = seconds, others
        async with tally.trial():
            tally.judge("s", timed, at_most=2)
    assert len(tally.violations) == 2


def test_time_of_a_machine_that_stood_still_is_not_judged():
    timed = Stopwatch()
    timed.seconds, timed.stalled = 41.0, 40.0
    assert timed.meets("s", 0.5) is False
    timed.stalled = 30.0
    with pytest.raises(AssertionError, match=r"stalled 30\.0 s"):
        timed.meets("s", 0.5)


def test_stall_of_the_process_is_noticed():
    resume = subprocess.Popen(
        ["sh", "-c", f"sleep 0.3; kill -STOP {os.getpid()}; sleep 1; kill -CONT {os.getpid()}"]
    )
    with Stopwatch() as timed:
        resume.wait()
    assert timed.stalled >= 0.5
    assert not timed.is_idle


def run_faults(*options):
    command = [sys.executable, "-m", "tests.faults", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_part_that_was_run_is_recorded_and_left_out_by_resume(tmp_path):
    results = tmp_path / "results.jsonl"
    options = ["--parts=hostile_urls", "--select=base", "--share=4", f"--results={results}"]
    done = run_faults(*options)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = read_runs(results)
    assert (run["part"], run["share"], run["passed"], run["failed"]) == (
        "crash/hostile_urls -k base",
        4,
        1,
        [],
    )
    (tally,) = run["tallies"]
    assert (tally["row"], tally["trials"], tally["violations"]) == ("F8", 120, 0)
    assert tally["complete"]
    assert run_faults(*options, "--resume").returncode == 0
    assert len(read_runs(results)) == 1


def test_part_that_fails_is_recorded_and_fails_the_run(tmp_path):
    results = tmp_path / "results.jsonl"
    options = ["--parts=hostile_urls", "--select=nothing_like_this", f"--results={results}"]
    assert run_faults(*options).returncode == 1
    (run,) = read_runs(results)
    assert run["exit"] != 0
    assert json.loads(results.read_text())["tallies"] == []


def test_cpu_of_a_child_is_the_own_and_that_of_a_stranger_is_not():
    spin = "import time\nend = time.process_time() + 0.4\nwhile time.process_time() < end: pass"
    before = read_machine()
    subprocess.run([sys.executable, "-c", spin], check=True)
    after_child = read_machine()
    # the shell ends first, so that its child belongs to nobody here
    stranger = f"exec 3>&1; ({sys.executable} -c '{spin}'; echo done >&3) >/dev/null 2>&1 &"
    done = subprocess.Popen(["sh", "-c", stranger], stdout=subprocess.PIPE)
    assert done.stdout.readline() == b"done\n"
    after_stranger = read_machine()
    done.wait()
    own, others = after_child[2] - before[2], after_stranger[2] - after_child[2]
    assert own >= 0.35
    assert others < 0.3
    assert after_stranger[1] - after_child[1] >= 0.35
