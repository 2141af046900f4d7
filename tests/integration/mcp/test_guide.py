"""The programs and configurations of docs/mcp.md, run as they stand."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tools.programs import find_program

from tests.servers.node import find_node, link_packages

pytestmark = pytest.mark.full

GUIDE = (Path(__file__).resolve().parents[3] / "docs" / "mcp.md").read_text()
ENDPOINT = "https://mcp.example.com/mcp"


def read_blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)


@pytest.fixture
def run(world, tmp_path):
    """Runs a program of the guide with the variables of gateway.env; what it prints."""
    link_packages("mcp-clients", tmp_path, tmp_path)

    def run_program(*command):
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env={**os.environ, **world.env},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run_program


def test_python_program_makes_a_video(run, tmp_path):
    (program,) = read_blocks("python")
    (tmp_path / "example.py").write_text(program)
    assert run(sys.executable, "example.py").startswith("http")


def test_typescript_program_lists_models(world, run, tmp_path):
    (program,) = read_blocks("js")
    (tmp_path / "example.mjs").write_text(program)
    assert world.env["GATEWAY_MODEL"] in run(find_node(), "example.mjs").split()


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_inspector_calls_a_tool(world, run, era):
    command = read_blocks("sh")[0].replace("\\\n", " ")
    for name in ("GATEWAY_MCP_URL", "GATEWAY_API_KEY"):
        command = command.replace(f"${name}", world.env[name])
    npx, package, *arguments = shlex.split(command)
    assert (npx, package) == ("npx", "@modelcontextprotocol/inspector")
    script = find_program("mcp-clients") / "node_modules" / ".bin" / "mcp-inspector"
    told = run(find_node(), str(script), *arguments, f"--protocol-era={era}", "--format=json")
    result = json.loads(told)
    models = result["result"]["structuredContent"]["models"]
    assert world.env["GATEWAY_MODEL"] in [model["model"] for model in models]


def test_configurations_are_json_with_the_endpoint_and_no_key():
    variables = []
    for block in read_blocks("json"):
        config = json.loads(block)
        (server,) = (config.get("servers") or config["mcpServers"]).values()
        assert (server.get("type", "http"), server["url"]) == ("http", ENDPOINT)
        for value in server.get("headers", {}).values():
            variables += re.fullmatch(r"Bearer (\$\{[\w:-]+\})", value).groups()
    # VS Code's, that of most clients, and Cursor's
    assert variables == ["${input:gateway-key}", "${GATEWAY_API_KEY}", "${env:GATEWAY_API_KEY}"]
