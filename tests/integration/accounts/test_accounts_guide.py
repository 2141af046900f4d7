"""docs/accounts.md: its commands do what it says they do."""

import os
import re
import shutil
import subprocess

import pytest

from tests.servers.world import ROOT

GUIDE = (ROOT / "docs/accounts.md").read_text()
BLOCKS = re.findall(r"^```(sh|text)\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)
BREAK = "=== next block ==="


def list_steps():
    """Each block of commands, and what it is said to print (None where nothing is said)."""
    steps = []
    for kind, text in BLOCKS:
        if kind == "sh":
            steps.append([text, None])
        else:
            assert steps[-1][1] is None, "an output without commands"
            steps[-1][1] = text
    return steps


def fits(said, printed):
    """Whether the lines that are said come in that order; `…` is anything, lines may be between."""
    position = 0
    for line in said.splitlines():
        pattern = "^" + ".*".join(map(re.escape, line.split("…"))) + "$"
        found = re.compile(pattern, re.MULTILINE).search(printed, position)
        if found is None:
            return False
        position = found.end()
    return True


def test_guide_states_the_output_of_its_commands():
    steps = list_steps()
    assert len(steps) >= 8
    assert sum(said is not None for _, said in steps) >= 6


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("one_day")
def test_commands_of_the_guide_print_the_stated_output(world):
    assert shutil.which("curl"), "the guide's commands need curl"
    steps = list_steps()
    script = f"\necho '{BREAK}'\n".join(text for text, _ in steps)
    kubectl = world.run.kubectl_path
    path = f"{kubectl.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env={**os.environ, **world.env, "PATH": path},
        capture_output=True,
        text=True,
        timeout=280,
    )
    printed = done.stdout.split(BREAK + "\n")
    for (text, said), output in zip(steps, printed, strict=False):
        assert said is None or fits(said, output), f"{text}\nprinted\n{output}\n{done.stderr}"
    assert done.returncode == 0, done.stderr
    assert len(printed) == len(steps)
