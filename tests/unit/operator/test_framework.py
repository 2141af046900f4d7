"""kopf is there without the package that it would load on sight."""

import subprocess
import sys

CODE = """
import sys
import gateway_operator.compose
assert "kopf" in sys.modules
assert "kubernetes" not in sys.modules
import kubernetes.config
"""


def test_the_operator_loads_no_kubernetes_and_can_where_a_plugin_needs_it() -> None:
    subprocess.run([sys.executable, "-c", CODE], check=True, timeout=60)
