"""A session of Codex, unmodified, with scripted providers of each format.

The configuration is that of docs/llm.md. The models are told by their names: Codex sends a custom
tool for editing files and a search for tools to those that it knows, and a namespace of tools to
all others.
"""

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tools.programs import find_program

from tests.documents.blocks import read_blocks
from tests.llm_cases.cases import PROVIDERS, Variant
from tests.llm_cases.provider import CaseProvider, Route
from tests.llm_cases.run import create, delete, describe_objects, wait_served
from tests.servers.llm_provider import Received
from tests.servers.node import find_node
from tests.servers.tenants import open_tenant, unique
from tests.servers.world import World

pytestmark = pytest.mark.full

PAGE = "docs/llm.md"
IDLE_SECONDS = 17
"""How long Codex waits for an event: little longer than the gateway lets a client wait for one."""
OPTIONS = f"""
request_max_retries = 0
stream_max_retries = 0
stream_idle_timeout_ms = {1000 * IDLE_SECONDS}
"""
PATCH = "*** Begin Patch\n*** Add File: made.txt\n+made by a patch\n*** End Patch"
RUN = {"name": "exec_command", "arguments": {"cmd": "echo 4$((1+1))-from-the-shell"}}
CLOSE = {"namespace": "multi_agent_v1", "name": "close_agent", "arguments": {"target": "nobody"}}
EDIT = {"name": "apply_patch", "input": PATCH}
COUNTS = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
TOKENS = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
METADATA = {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}


def write_call(step: dict[str, Any], number: int) -> dict[str, Any]:
    """Return the scripts of a model that reasons and calls a tool, by format."""
    name = f"{step['namespace']}__{step['name']}" if "namespace" in step else step["name"]
    arguments = {"input": step["input"]} if "input" in step else step["arguments"]
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"index": 0, "id": f"c{number}", "type": "function", "function": function}
    item = {"type": "function_call", **step, "id": f"f{number}", "call_id": f"c{number}"}
    if "input" in step:
        item["type"] = "custom_tool_call"
    else:
        item["arguments"] = json.dumps(arguments)
    part = {
        "functionCall": {"name": name, "args": arguments},
        "thoughtSignature": f"c2ln{number}A==",
    }
    return {
        "openai": [
            {"delta": {"reasoning_content": f"Thought {number}."}},
            {"delta": {"tool_calls": [call]}, "finish": "tool_calls"},
            {"usage": COUNTS},
            "[DONE]",
        ],
        "responses": write_items(item),
        "google": [
            {"parts": [{"text": "Hm.", "thought": True}]},
            {"parts": [part], "finish": "STOP", "usage": METADATA},
        ],
    }


def write_text(text: str) -> dict[str, Any]:
    """Return the scripts of a model that answers, by format."""
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {
        "type": "message",
        "id": "m1",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }
    return {
        "openai": [
            {"delta": {"content": text}},
            {"delta": {}, "finish": "stop"},
            {"usage": COUNTS},
            "[DONE]",
        ],
        "responses": write_items(item),
        "google": [{"parts": [{"text": text}], "finish": "STOP", "usage": METADATA}],
    }


def write_items(item: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "response.created", "response": {"status": "in_progress"}},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": {"output": [item], "usage": TOKENS}},
    ]


async def hold_session(
    world: World,
    folder: Path,
    kind: str,
    model: str,
    steps: list[dict[str, Any]],
    silent_seconds: float = 0,
) -> tuple[str, list[Received]]:
    """Run Codex until its model has made the steps and answered; its output and what was sent."""
    scripts = [
        *(write_call(step, number) for number, step in enumerate(steps)),
        write_text("Done, all of it."),
    ]
    upstream = [{"frames": [{"pause": silent_seconds}, *script[kind]]} for script in scripts]
    name = unique("codex")
    variant = Variant(name, {"model": {"modelId": model}}, "responses", (kind,), True)
    async with (
        open_tenant(world, requestsPerMinute=1000) as client,
        CaseProvider() as provider,
        world.kube() as kube,
    ):
        route = provider.routes[name] = Route(None)
        route.begin(upstream)
        objects = describe_objects(variant, name, provider.url)
        try:
            for obj in objects:
                await create(kube, obj)
            await wait_served(client, {model})
            output = await asyncio.to_thread(run_codex, world, folder, client.key, model)
        finally:
            for obj in objects:
                await delete(kube, obj)
    return output, route.received


def run_codex(world: World, folder: Path, key: str, model: str) -> str:
    """Return what Codex prints."""
    home, work = folder / "home", folder / "work"
    home.mkdir()
    work.mkdir()
    [config] = [block.text for block in read_blocks(PAGE) if block.language == "toml"]
    config = config.replace("https://gateway.example.com", world.env["GATEWAY_BASE_URL"])
    (home / "config.toml").write_text(config + OPTIONS)
    program = find_program("codex") / "node_modules" / "@openai" / "codex" / "bin" / "codex.js"
    command = [find_node(), str(program), "exec", "--skip-git-repo-check", "-m", model]
    # the machine of the tests may lack what Codex confines its commands with
    command += ["--dangerously-bypass-approvals-and-sandbox", "Do it."]
    env = {**os.environ, "CODEX_HOME": str(home), "GATEWAY_API_KEY": key}
    done = subprocess.run(
        command,
        cwd=work,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("kind", PROVIDERS)
def test_session_with_tools_of_a_namespace(world: World, tmp_path: Path, kind: str) -> None:
    steps = [RUN, CLOSE]
    output, sent = asyncio.run(hold_session(world, tmp_path, kind, unique("writer"), steps))
    assert "Done, all of it." in output
    _, second, third = (json.dumps(each.body) for each in sent)
    assert "42-from-the-shell" in second
    flat, tool = "multi_agent_v1__close_agent", json.loads(third)["tools"]
    assert flat in json.dumps(tool) or kind == "responses"
    assert "nobody" in third
    check_thoughts(kind, second, third)


@pytest.mark.parametrize("kind", PROVIDERS)
def test_session_with_a_custom_tool(world: World, tmp_path: Path, kind: str) -> None:
    steps = [EDIT, RUN]
    output, sent = asyncio.run(hold_session(world, tmp_path, kind, unique("gpt-5.5"), steps))
    assert "Done, all of it." in output
    assert (tmp_path / "work" / "made.txt").read_text() == "made by a patch\n"
    _, second, third = (json.dumps(each.body) for each in sent)
    assert "made by a patch" in second
    assert "42-from-the-shell" in third
    check_thoughts(kind, second, third)


@pytest.mark.timeout(120)
def test_session_survives_a_provider_that_is_silent_for_long(world: World, tmp_path: Path) -> None:
    silent = IDLE_SECONDS + 15
    model = unique("writer")
    output, sent = asyncio.run(hold_session(world, tmp_path, "openai", model, [], silent))
    assert "Done, all of it." in output
    assert len(sent) == 1


def check_thoughts(kind: str, second: str, third: str) -> None:
    """Assert that the provider got back what it sent beside the calls, and nothing of others."""
    expected = {"openai": "Thought {}.", "google": "c2ln{}A=="}.get(kind, "call_id")
    assert expected.format(0) in second
    assert expected.format(0) in third
    assert expected.format(1) in third
    assert "gateway:" not in third
