"""The event loop that the processes run on (decision 32)."""

from pathlib import Path

import pytest


@pytest.mark.parametrize("process", ["api", "media", "operator", "simulator"])
def test_process_runs_on_the_standard_event_loop(world, process):
    mapped = Path(f"/proc/{world.run.pid_of(process)}/maps").read_text()
    assert "uvloop" not in mapped
