"""Programs in network namespaces of their own, where every address is the test's."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.servers.control_plane import ROOT


def run_alone(module: str, *namespaces: str) -> Any:
    """The JSON that `python -m module` prints in new namespaces; skips where there are none."""
    program = [sys.executable, "-m", module]
    for alone in (["unshare", *namespaces], ["unshare", *namespaces, "--map-root-user"]):
        done = subprocess.run(
            [*alone, *program], cwd=ROOT, capture_output=True, text=True, check=False, timeout=100
        )
        if done.returncode == 0:
            return json.loads(done.stdout)
    # root has namespaces: there a failure is one of the program's own
    assert os.geteuid() != 0, done.stderr[-2000:]
    pytest.skip(f"no namespaces to be had: {done.stderr[-200:]}")
