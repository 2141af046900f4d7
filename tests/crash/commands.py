"""What an admin calls and scrapes: `gatewayctl`, and the metrics of a process."""

import json
import os
import subprocess
import sys
from typing import Any

import aiohttp

from tests.servers.world import World


def run_gatewayctl(world: World, *arguments: str) -> tuple[int, Any]:
    """The exit code of a command on the world's cluster, and its JSON."""
    env = {**os.environ, "KUBECONFIG": str(world.config.cluster_kubeconfig)}
    command = (sys.executable, "-m", "gateway_cli", *arguments, "-n", world.config.namespace)
    done = subprocess.run(
        (*command, "-o", "json"), env=env, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


async def scrape(world: World, process: str) -> str:
    """The metrics of a process, in the format of Prometheus."""
    port = getattr(world.config.ports, "api_health" if process == "api" else process)
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/metrics") as response,
    ):
        assert response.status == 200
        assert "version=" in response.headers["Content-Type"]
        return await response.text()
