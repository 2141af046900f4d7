"""Language models as the unmodified SDKs of OpenAI and Google for Node.js see them.

The checks are in `node/`, one module for each SDK.
"""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.servers.node import find_node, link_packages

pytestmark = pytest.mark.full

FOLDER = Path(__file__).with_name("node")
MODELS = ("sim-chat", "sim-google")
CHECKS = [
    (sdk, name, model)
    for sdk in ("openai", "genai")
    for name in re.findall(r"^  async (\w+)\(", (FOLDER / f"{sdk}.mjs").read_text(), re.MULTILINE)
    for model in MODELS
]


@pytest.fixture(scope="session")
def run(base_url, shared_account, spare_models, tmp_path_factory):
    """Runs all checks of an SDK; what went wrong, by check and model."""
    folder = link_packages("node-sdks", FOLDER, tmp_path_factory.mktemp("node"))
    results = {}

    def run_checks(sdk):
        if sdk not in results:
            kind = "openai" if sdk == "openai" else "google"
            env = os.environ | {
                "BASE_URL": base_url,
                "KEY": shared_account[1],
                "MODELS": ",".join(MODELS),
                "SPARE": spare_models[kind].pop(),
                "SECOND_SPARE": spare_models[kind].pop(),
            }
            command = [find_node(), "run.mjs", f"{sdk}.mjs"]
            done = subprocess.run(
                command, cwd=folder, env=env, capture_output=True, text=True, timeout=120
            )
            results[sdk] = json.loads(done.stdout) if done.returncode == 0 else {}
            assert done.returncode == 0, done.stderr
        return results[sdk]

    return run_checks


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("sdk", "name", "model"), CHECKS)
def test_sdk_for_node(run, sdk, name, model):
    assert run(sdk)[f"{name} {model}"] is None
