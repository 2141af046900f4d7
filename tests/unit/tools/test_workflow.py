"""The workflow of hosted CI: what .ci/run does, and nothing that may change under it."""

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3]
PATHS = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))


def read_steps(path: Path) -> list[dict[str, Any]]:
    workflow = yaml.safe_load(path.read_text())
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def test_ci_runs_the_script_that_developers_run() -> None:
    runs = [step["run"] for path in PATHS for step in read_steps(path) if "run" in step]
    assert runs == [".ci/run"]
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


def test_actions_are_pinned_by_commit_and_get_no_rights() -> None:
    for path in PATHS:
        assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}
        for step in read_steps(path):
            if "uses" in step:
                assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", step["uses"]), step
