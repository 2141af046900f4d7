"""The operator under `kopf run`, and its Events in `kubectl describe`."""

import asyncio
import json
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.servers.control_plane import ControlPlane
from tests.servers.replica import Replica
from tests.servers.server import find_free_port
from tests.servers.tenants import describe, describe_model, describe_task, open_tenant, unique
from tests.servers.world import Client, World, wait_for


@pytest.fixture(scope="module")
def world(control_plane: ControlPlane) -> Iterator[World]:
    """A gateway whose own operator has been ended."""
    with World(control_plane) as running:
        running.run.kill("operator")
        yield running


@pytest.fixture(scope="module")
def liveness() -> str:
    """The URL of kopf's liveness endpoint."""
    return f"http://127.0.0.1:{find_free_port()}/healthz"


@pytest.fixture(scope="module")
def operator(world: World, liveness: str) -> Iterator[Replica]:
    """An operator that `kopf run` runs, with one attempt for each callback."""
    replica = Replica(world, "operator", GATEWAY_CALLBACK_SCHEDULE="0")
    replica.command = (
        *(sys.executable, "-m", "kopf", "run", "-m", "gateway_operator.handlers"),
        *("--namespace", world.config.namespace, f"--liveness={liveness}"),
    )
    with replica:
        yield replica
        replica.terminate()
        assert replica.wait_ended(20) == 0, "kopf has handled the signal"


@pytest.fixture
async def client(world: World, operator: Replica) -> AsyncIterator[Client]:
    async with open_tenant(world) as own:
        yield own


def name_of(task_id: str) -> str:
    return task_id.replace("_", "-", 1)


async def wait_event(world: World, kind: str, name: str, reason: str) -> str:
    """The message of an Event, which `kubectl describe` shows."""

    def find() -> str | None:
        selector = f"--field-selector=involvedObject.name={name},reason={reason}"
        listed = json.loads(world.run.kubectl("get", "events", selector, "-o", "json"))["items"]
        assert len(listed) <= 1, "a reason is reported once in ten minutes"
        return listed[0]["message"] if listed else None

    message = await wait_for(find, what=f"the Event {reason} of {name}")
    shown = world.run.kubectl("describe", kind, name)
    events = shown[shown.index("\nEvents:") :]
    assert reason in events
    assert "model-gateway" in events
    return str(message)


async def test_tasks_run_to_their_end(world: World, client: Client) -> None:
    made = (await client.create(duration_seconds=3)).body["id"]
    assert (await client.wait_terminal([made]))[made]["status"] == "completed"
    message = await wait_event(world, "gatewaytask", name_of(made), "Submitted")
    job = world.read("gatewaytask", name_of(made))["status"]["upstream"]["jobId"]
    assert message == f"job {job} at provider simulated"


async def test_kubelet_is_answered_by_the_liveness_endpoint(
    liveness: str, operator: Replica
) -> None:
    def ask() -> object:
        with urllib.request.urlopen(liveness, timeout=10) as answer:
            return json.load(answer)

    assert await asyncio.to_thread(ask) == {"heartbeat": "ok"}


async def test_failure_is_an_event_with_its_reason(world: World, client: Client) -> None:
    await client.simulate({"behaviour": "fail", "message": "The prompt was refused."})
    made = (await client.create()).body["id"]
    message = await wait_event(world, "gatewaytask", name_of(made), "Failed")
    assert message == "GenerationFailed: The prompt was refused."
    await client.simulate()


async def test_given_up_callback_is_an_event(world: World, client: Client) -> None:
    secret = world.read("gatewayaccount", "demo")["spec"]["webhookSecretRef"]
    world.patch("gatewayaccount", client.account, {"webhookSecretRef": secret})
    url = f"http://127.0.0.1:{find_free_port()}/"
    made = (await client.create(duration_seconds=3, callback_url=url)).body["id"]
    assert await wait_event(world, "gatewaytask", name_of(made), "CallbackGivenUp")


async def test_unready_provider_and_waiting_task_are_events(world: World, client: Client) -> None:
    provider, model, task = unique("provider"), unique("model"), unique("task-made")
    spec = world.read("gatewayprovider", "simulated")["spec"]
    lost = {**spec, "credentialsSecretRef": {"name": "nosuch", "key": "token"}}
    routes = [{"name": "only", "providerName": provider, "upstreamModel": "q4"}]
    world.apply(describe("Provider", provider, lost), describe_model(world, model, routes=routes))
    message = await wait_event(world, "gatewayprovider", provider, "NotReady")
    assert "nosuch" in message
    changes = {"service": model, "modelId": model}
    world.apply(describe_task(client, task, changes=changes), command="create")
    waiting = await wait_event(world, "gatewaytask", task, "WaitingForProvider")
    assert waiting.startswith(f"provider {provider}: ")
    assert "nosuch" in waiting
    row = world.run.kubectl("get", "gatewaytask", task, "--no-headers")
    assert " ".join(waiting.split()) in " ".join(row.split())
    assert row.split()[3:5] == ["Pending", "WaitingForProvider"]
    described = world.run.kubectl("get", "gatewaytask", task, "-o", "jsonpath={.status.conditions}")
    shown = {c["type"]: (c["status"], c["message"]) for c in json.loads(described)}
    assert shown["Succeeded"] == ("Unknown", waiting)
    assert "; the task waits until 20" in waiting


async def test_operator_of_another_namespace_sees_no_work_and_ends(world: World) -> None:
    replica = Replica(world, "operator", GATEWAY_HEARTBEAT_SECONDS="0.5")
    command = (sys.executable, "-m", "kopf", "run", "-m", "gateway_operator.handlers")
    replica.command = (*command, "--namespace", "kube-system")
    replica.start()
    assert replica.wait_ended(60) == 0
    log = replica.log.read_text()
    assert "was_ever_up=False" in log
    assert "unexpected failure" not in log
