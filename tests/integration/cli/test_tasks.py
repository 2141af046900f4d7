"""gatewayctl against the whole gateway: tasks with a key, and what an admin sees of them."""

import os
import re
import signal
import subprocess
import sys

import pytest

from gateway_cli.rest.sample import is_mp4
from tests.servers.world import wait_for

CREATE = (
    *("tasks", "create", "--prompt", "A lighthouse at dawn"),
    *("--image", "https://example.com/lighthouse.png", "--field", "duration_seconds=3"),
)


@pytest.mark.full
async def test_task_is_created_followed_and_its_video_fetched(
    client, gatewayctl, simulate, tmp_path
):
    # it says that it waits where the task has not ended by its first look
    match = {"prompt_contains": "lighthouse"}
    await simulate({"behaviour": "seconds", "seconds": 4, "match": match})
    folder = tmp_path / "videos"
    said = await gatewayctl(*CREATE, "--download", folder, "-o", "json")
    task = said.document
    assert (task["status"], task["usage"]) == ("completed", {"cost": 0.18})
    (path,) = task["files"]
    assert path == str(folder / f"{task['id']}-1.mp4")
    with open(path, "rb") as file:
        assert is_mp4(file.read())
    key = re.search(r"Idempotency-Key: (\S+)", said.err)[1]
    assert task["idempotency_key"] == key
    assert f"Waiting for {task['id']}" in said.err
    # the same key finds the same task, and another input is refused with it
    again = (await gatewayctl(*CREATE, "--idempotency-key", key, "-o", "json")).document
    assert (again["id"], again["task_replayed"]) == (task["id"], True)
    other = await gatewayctl(
        *CREATE, "--field", "duration_seconds=4", "--idempotency-key", key, code=4
    )
    assert "409" in other.err
    # an admin sees it, and what it came to
    name = task["id"].replace("_", "-", 1)
    seen = (await gatewayctl("tasks", "describe", name, "-o", "json")).document
    assert (seen["phase"], seen["cost"], seen["account"]) == ("Completed", "0.18", client.account)

    async def is_counted():
        usage = (await gatewayctl("usage", client.account, "--by", "model", "-o", "json")).document
        return usage["totals"]["cost"] == "0.18"

    await wait_for(is_counted, what="the usage")


@pytest.mark.full
async def test_exit_codes_tell_how_a_task_fares(world, client, gatewayctl, simulate):
    await simulate(
        {"behaviour": "stall", "match": {"prompt_contains": "Endless"}},
        {"behaviour": "fail", "message": "Refused.", "match": {"prompt_contains": "Refuse"}},
    )
    endless = (await gatewayctl(*CREATE, "--field", "prompt=Endless", "-o", "json")).document["id"]
    waited = await gatewayctl("tasks", "wait", endless, "--timeout", "1s", "-o", "json", code=3)
    assert waited.document["status"] == "processing"
    assert (await gatewayctl("tasks", "get", endless, code=3)).out
    listed = (await gatewayctl("tasks", "history", "--status", "processing", "-o", "json")).document
    assert [task["id"] for task in listed["items"]] == [endless]
    told = (await gatewayctl("tasks", "abort", endless, "-o", "json")).document
    assert told["status"] == "processing"
    ended = (await gatewayctl("tasks", "wait", endless, "-o", "json", code=1)).document
    assert ended["error"] == "The task was cancelled."
    failed = await gatewayctl(*CREATE, "--field", "prompt=Refuse", "--wait", code=1)
    assert "Refused." in failed.out
    assert "404" in (await gatewayctl("tasks", "get", "task_none", code=4)).err
    wrong = await gatewayctl("tasks", "create", "--field", "colour=red", code=4)
    assert "colour" in wrong.err
    assert "prompt" in wrong.err


@pytest.mark.full
async def test_interrupted_wait_says_that_the_task_goes_on(world, client, gatewayctl, simulate):
    await simulate({"behaviour": "stall", "match": {"prompt_contains": "Endless"}})
    task = (await gatewayctl(*CREATE, "--field", "prompt=Endless", "-o", "json")).document["id"]
    command = [sys.executable, "-m", "gateway_cli", "tasks", "wait", task]
    env = {**os.environ, **world.env, "GATEWAY_API_KEY": client.key}
    with subprocess.Popen(
        command,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # ignored, and so by all below, where a shell runs the tests in the background
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        # it says after three seconds that it is at work
        assert "Waiting" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, "")
    assert "goes on" in err
    assert "Traceback" not in err
    await gatewayctl("tasks", "cancel", task.replace("_", "-", 1))


async def test_helm_test_proves_the_installation(gatewayctl, client):
    said = await gatewayctl("install", "test")
    assert "the API is ready" in said.out
    assert "a call without a key is refused" in said.out
    assert "written to the store, read again and deleted" in said.out
    assert (await client.request("GET", "/v1/files")).body["data"] == []
    task = ("--service", "sim", "--model", "sim-q4-reference-to-video")
    assert "video of" in (await gatewayctl("install", "test", *task)).out


async def test_balance_is_that_of_the_keys_account(gatewayctl, client):
    found = (await client.request("GET", "/api/v1/me/balance")).body
    assert (await gatewayctl("balance", "--output", "json")).document == found
    assert f"{found['balance_cents'] / 100:.2f}" in (await gatewayctl("balance")).out
