"""Lines of the log."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import structlog
from gateway_core.observability.logs import configure_logging

def fail(secret):
    raise ValueError("broken")

configure_logging("info", sys.argv[1])
try:
    fail("sword" + "fish")
except ValueError:
    structlog.get_logger("test").exception("failed")
"""


@pytest.mark.parametrize("form", ["console", "json"])
def test_traceback_has_no_local_variables(form: str) -> None:
    command = [sys.executable, "-c", PROGRAM, form]
    written = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert "swordfish" not in written
    assert "ValueError: broken" in written
