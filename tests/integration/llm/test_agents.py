"""Conversations of two steps with a tool, as unmodified frameworks of agents hold them.

LangChain and instructor are in `agents/`, Vercel's AI SDK in `node/`. Each speaks every dialect to
models at providers of each kind.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tools.programs import find_program

from tests.integration.llm.models import PRICE
from tests.servers.node import find_node, link_packages
from tests.servers.tenants import describe, unique
from tests.servers.world import wait_for

pytestmark = pytest.mark.full

FOLDER = Path(__file__).parent
KINDS = {
    "openai": ("openai", {}),
    "responses": ("openai", {"hasResponses": True}),
    "google": ("google", {}),
}
CHECKS = [
    (agent, name, kind)
    for agent, pattern, path in (
        ("langchain", r"^def (talk_\w+)\(", "agents/langchain_agent.py"),
        ("instructor", r"^def (talk_\w+)\(", "agents/instructor_agent.py"),
        ("vercel", r"^  async (\w+)\(", "node/vercel.mjs"),
    )
    for name in re.findall(pattern, (FOLDER / path).read_text(), re.MULTILINE)
    for kind in KINDS
]


@pytest.fixture(scope="module")
def models(world, shared_account):
    """A model at a simulated provider of each kind, by kind."""
    simulator = world.env["GATEWAY_SIMULATOR_URL"]
    secret = {"name": "simulated-moderation-key", "key": "token"}
    models, objects = {}, []
    for kind, (type_, fields) in KINDS.items():
        models[kind] = model = unique(f"agent-{kind}")
        version = "v1beta" if type_ == "google" else "v1"
        declared = {"baseUrl": f"{simulator}/{version}", **fields}
        spec = {"type": type_, type_: declared, "credentialsSecretRef": secret}
        routes = [{"name": "main", "providerName": model, "upstreamModel": "any"}]
        served = {"modelId": model, "service": model, "action": "chat", "routes": routes}
        objects.append(describe("Provider", model, spec))
        objects.append(describe("Model", model, {**served, "prices": [PRICE]}))
    world.apply(*objects)

    async def wait_served():
        async with world.client(shared_account[1]) as client:

            async def are_served():
                listed = (await client.request("GET", "/v1/models")).body["data"]
                return set(models.values()) <= {entry["id"] for entry in listed}

            await wait_for(are_served, what="the models of the agents")

    asyncio.run(wait_served())
    return models


@pytest.fixture(scope="module")
def run(base_url, shared_account, models, tmp_path_factory):
    """Holds all conversations of a framework; what went wrong, by conversation and model."""
    env = os.environ | {
        "BASE_URL": base_url,
        "KEY": shared_account[1],
        "MODELS": ",".join(models.values()),
    }
    results = {}

    def hold(agent):
        if agent not in results:
            if agent == "vercel":
                node = tmp_path_factory.mktemp("node")
                folder = link_packages("node-sdks", FOLDER / "node", node)
                command = [find_node(), "run.mjs", "vercel.mjs"]
            else:
                folder = FOLDER / "agents"
                command = [sys.executable, "run.py", f"{agent}_agent"]
                env["PYTHONPATH"] = str(find_program("agent-packages"))
            done = subprocess.run(
                command, cwd=folder, env=env, capture_output=True, text=True, timeout=240
            )
            results[agent] = json.loads(done.stdout) if done.returncode == 0 else {}
            assert done.returncode == 0, done.stderr
        return results[agent]

    return hold


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("agent", "name", "kind"), CHECKS)
def test_agent_calls_a_tool_and_uses_its_result(run, models, agent, name, kind):
    problem = run(agent)[f"{name} {models[kind]}"]
    assert problem is None, problem
