"""The record is lost with all of etcd and Redis, and restored from `gatewayctl record save`.

docs/operations/backup.md has the same commands in the same order.
"""

import json
import shutil
import signal

import pytest

from tests.crash.commands import run_gatewayctl
from tests.crash.history import is_closed
from tests.crash.storage import create_file
from tests.servers.tenants import open_tenant, read_balance, wait_known
from tests.servers.world import World, wait_for

pytestmark = [pytest.mark.timeout(400)]

GATEWAY = ("operator", "api", "media")
VIDEO_SECONDS = 3
CONTENT = b"kept over the loss " * 100


def lose_everything(world):
    """Ends the control plane and Redis, and removes what they have stored."""
    for name in ("kube-apiserver", "etcd", "redis"):
        world.run.kill(name)
    shutil.rmtree(world.config.directory / "etcd")
    for name in ("etcd", "kube-apiserver", "redis"):
        world.run.restart(name)


def strip(secret):
    """The Secret as another cluster takes it."""
    kept = {name: secret["metadata"].get(name) for name in ("name", "labels", "annotations")}
    return {**secret, "metadata": {name: value for name, value in kept.items() if value}}


async def test_restored_record_has_the_same_money_tasks_and_files(tmp_path):
    with World() as world:
        async with open_tenant(world) as client:
            file = await create_file(client, CONTENT)
            ended = [
                await client.create_surely(f"ended-{n}", duration_seconds=VIDEO_SECONDS)
                for n in range(3)
            ]
            bodies = await client.wait_terminal(ended)
            await wait_for(lambda: is_closed(world, client), what="the end of all")
            chat = {"model": "sim-chat", "messages": [{"role": "user", "content": "Hi"}]}
            answer = await client.request("POST", "/v1/chat/completions", body=chat)
            assert answer.status == 200, answer.raw
            await client.simulate({"behaviour": "seconds", "seconds": "30"})
            running = await client.create_surely("running", duration_seconds=VIDEO_SECONDS)

            def is_running():
                name = running.replace("_", "-", 1)
                return world.read("gatewaytask", name)["status"].get("upstream", {}).get("jobId")

            await wait_for(is_running, what="a job")
            before = await read_balance(client)

            for name in GATEWAY:
                world.run.kill(name, signal.SIGTERM)

            def are_gone():
                return not any(map(world.is_alive, GATEWAY))

            await wait_for(are_gone, seconds=40, what="the end of the gateway")
            _, saved = run_gatewayctl(world, "record", "save", str(tmp_path / "record.jsonl"))
            secrets = json.loads(world.run.kubectl("get", "secrets", "-o", "json"))["items"]
            lose_everything(world)

            world.run.kubectl("create", "namespace", world.config.namespace)
            world.run.kubectl("apply", "--server-side", "-f", str(world.config.root / "crds"))
            world.run.kubectl("wait", "--for=condition=Established", "crd", "--all")
            world.apply(*map(strip, secrets))
            path = str(tmp_path / "record.jsonl")
            _, made = run_gatewayctl(world, "record", "restore", path)
            assert (made["made"], made["kept"]) == (saved["objects"], 0)
            _, again = run_gatewayctl(world, "record", "restore", path)
            assert (again["made"], again["kept"]) == (0, saved["objects"])
            for name in ("api", "media", "operator"):
                world.run.restart(name)

            await wait_known(client, seconds=30)
            assert await read_balance(client) == before
            for task in ended:
                assert (await client.poll(task)).body == bodies[task]
            content = await client.request("GET", f"/v1/files/{file}/content")
            assert content.raw == CONTENT
            replay = await client.create(idempotency_key="ended-0", duration_seconds=VIDEO_SECONDS)
            assert replay.body["id"] == ended[0]
            # its job goes on at the provider: it is polled, not submitted again
            body = (await client.wait_terminal([running]))[running]
            assert body["status"] == "completed"
            history = await client.read_simulator()
            assert len(history["submissions"]) == 4
