"""Recorded runs of parts of the fault matrix, and the measure of other work on the machine."""

import json
import subprocess
import sys

from tools.reliability import read_runs

from tests.faults.__main__ import ROOT
from tests.faults.machine import read_machine


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
