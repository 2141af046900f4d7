"""Tasks from an admin's side: made, watched, ended and deleted with kubectl."""

import json
import re

import pytest

from gateway_cli.cluster.errors import ClusterError
from tests.servers.tenants import (
    describe,
    describe_model,
    describe_task,
    read_balance,
    read_ready,
    unique,
    wait_status,
)
from tests.servers.world import wait_for

FINISHED = ("--for=condition=Finished", "--timeout=20s")


def id_of(name):
    return name.replace("-", "_", 1)


async def make_task(client, *, changes=None, **given):
    """A task made with kubectl; its name."""
    name = unique("task-made")
    obj = describe_task(client, name, changes=changes, **given)
    client.world.apply(obj, command="create")
    return name


def read_status(world, name):
    return world.read("gatewaytask", name).get("status", {})


def wait_running(world, name):
    world.run.kubectl("wait", "--for=jsonpath={.status.phase}=Running", f"gatewaytask/{name}")


async def test_task_of_kubectl_runs_like_one_of_rest(world, client, other):
    name = await make_task(client, duration_seconds=3)
    await wait_status(client, 200, f"{client.tasks_path}/{id_of(name)}")
    assert (await other.poll(id_of(name))).status == 404
    world.run.kubectl("wait", *FINISHED, f"gatewaytask/{name}")
    body = (await client.wait_terminal([id_of(name)]))[id_of(name)]
    assert body["status"] == "completed"
    assert body["id"] == id_of(name)
    assert body["usage"]["cost"] == 0.18
    assert len(body["videos"]) == 1
    obj = world.read("gatewaytask", name)
    assert obj["metadata"]["labels"]["modelgateway.dev/account"] == client.account

    async def is_charged():
        return (await read_balance(client))["spent_cents_total"] == 18

    await wait_for(is_charged, what="the charge")
    # the defaults that REST gives went upstream
    jobs = await client.read_simulator(f"/control/jobs?client_reference={obj['metadata']['uid']}")
    assert len(jobs["jobs"]) == 1


async def test_columns_tell_what_an_admin_wants_at_a_glance(world, ended):
    name = ended[2].replace("_", "-", 1)
    narrow = world.run.kubectl("get", "gatewaytasks", name)
    wide = world.run.kubectl("get", "gwtask", name, "-o", "wide")
    head, row = (re.split(r" {2,}", line.strip()) for line in narrow.splitlines())
    assert head == ["NAME", "ACCOUNT", "MODEL", "PHASE", "REASON", "COST", "AGE"]
    shown = dict(zip(head, row, strict=True))
    assert shown | {"AGE": ""} == {
        "NAME": name,
        "ACCOUNT": ended[1],
        "MODEL": world.env["GATEWAY_MODEL"],
        "PHASE": "Completed",
        "REASON": "Completed",
        "COST": "0.18",
        "AGE": "",
    }
    head_line, row_line = wide.splitlines()
    starts = [match.start() for match in re.finditer(r"(?<=  )\S|^\S", head_line)]
    ends = [*starts[1:], None]
    # by position: a task without a callback has nothing to show below some heads
    shown = {
        head_line[start:end].strip(): row_line[start:end].strip()
        for start, end in zip(starts, ends, strict=True)
    }
    assert {"PROVIDER", "JOB", "KEY", "FINISHED", "MESSAGE"} <= set(shown)
    assert shown["PROVIDER"] == "simulated"
    assert shown["JOB"].startswith("job_")
    assert name in world.run.kubectl("get", "modelgateway")


async def test_describe_tells_the_story(world, client, simulate, ended):
    shown = world.run.kubectl("describe", "gatewaytask", ended[2].replace("_", "-", 1))
    conditions = shown[shown.index("Conditions:") :]
    for line in ("Type:  *Succeeded", "Type:  *Finished", "Reason:  *Completed", "Status:  *True"):
        assert re.search(line, conditions), line
    assert "the outputs are stored" in conditions
    rule = {"behaviour": "fail", "message": "The prompt was refused."}
    await simulate({**rule, "match": {"prompt_contains": "Refuse"}})
    name = await make_task(client, prompt="Refuse this")
    world.run.kubectl("wait", *FINISHED, f"gatewaytask/{name}")
    shown = world.run.kubectl("describe", "gatewaytask", name)
    assert re.search(r"Reason: +GenerationFailed", shown)
    assert "The prompt was refused." in shown


async def test_describe_shows_events_of_a_running_task(world, client, simulate):
    await simulate({"behaviour": "stall", "match": {"prompt_contains": "Endless"}})
    name = await make_task(client, prompt="Endless")
    wait_running(world, name)
    conditions = {c["type"]: c for c in read_status(world, name)["conditions"]}
    assert (conditions["Succeeded"]["status"], conditions["Succeeded"]["reason"]) == (
        "Unknown",
        "Running",
    )
    assert conditions["Finished"]["status"] == "False"
    world.patch("gatewaytask", name, {"desiredState": "Cancelled"})
    world.run.kubectl("wait", *FINISHED, f"gatewaytask/{name}")
    conditions = {c["type"]: c for c in read_status(world, name)["conditions"]}
    assert (conditions["Succeeded"]["status"], conditions["Succeeded"]["reason"]) == (
        "False",
        "Cancelled",
    )
    body = (await client.wait_terminal([id_of(name)]))[id_of(name)]
    assert body == {"id": id_of(name), "status": "failed", "error": "The task was cancelled."}


async def test_invalid_task_of_kubectl_fails_costs_nothing_and_says_why(world, client):
    """A smoke test; tests/unit/operator/test_adoption.py has every reason."""
    name = await make_task(client, duration_seconds=99)
    world.run.kubectl("wait", *FINISHED, f"gatewaytask/{name}")
    status = read_status(world, name)
    assert (status["phase"], status["chargedMicros"]) == ("Failed", 0)
    assert status["failure"]["code"] == "invalid_request"
    succeeded = next(c for c in status["conditions"] if c["type"] == "Succeeded")
    assert (succeeded["status"], succeeded["reason"]) == ("False", "InvalidRequest")
    assert "duration_seconds" in succeeded["message"]
    balance = await read_balance(client)
    assert balance["balance_cents"] == balance["paid_balance_cents"] == 10_000


@pytest.mark.parametrize("made_by", ["rest", "kubectl"])
async def test_delete_stops_the_job_and_releases_the_hold(world, client, simulate, made_by):
    await simulate({"behaviour": "stall", "match": {"prompt_contains": "Endless"}})
    if made_by == "rest":
        name = (await client.create(prompt="Endless")).body["id"].replace("_", "-", 1)
    else:
        name = await make_task(client, prompt="Endless")
    wait_running(world, name)
    job = read_status(world, name)["upstream"]["jobId"]
    world.run.kubectl("delete", "gatewaytask", name, "--timeout=20s")
    cancels = (await client.read_simulator())["cancels"]
    assert [c["cancelled"] for c in cancels if c["job_id"] == job] == [True]
    body = (await client.wait_terminal([id_of(name)], seconds=5))[id_of(name)]
    assert body == {"id": id_of(name), "status": "failed", "error": "The task was cancelled."}

    async def is_released():
        return (await read_balance(client))["balance_cents"] == 10_000

    await wait_for(is_released, what="the hold released")
    with pytest.raises(ClusterError, match="not found"):
        world.read("gatewaytask", name)


async def test_delete_of_an_ended_task_leaves_its_result_readable(world, client):
    task = (await client.create(duration_seconds=3)).body["id"]
    body = (await client.wait_terminal([task]))[task]
    world.run.kubectl("delete", "gatewaytask", task.replace("_", "-", 1), "--timeout=20s")
    assert (await client.poll(task)).body == body
    assert (await read_balance(client))["spent_cents_total"] == 18


def make_provider(world, base_url):
    """A provider like the simulated one at another address, and a model on it."""
    name = unique("flaky")
    spec = world.read("gatewayprovider", "simulated")["spec"]
    spec["http"]["baseUrl"] = base_url
    route = {"name": "main", "providerName": name, "upstreamModel": "q4"}
    service = world.env["GATEWAY_SERVICE"]
    model = describe_model(world, name, routes=[route], service=service)
    world.apply(describe("Provider", name, spec), model)
    return name


def list_events(world, name):
    selector = f"--field-selector=involvedObject.name={name}"
    return json.loads(world.run.kubectl("get", "events", selector, "-o", "json"))["items"]


@pytest.mark.full
async def test_delete_with_the_provider_down_lets_go_after_30_s_and_leaves_an_event(abandoned):
    told = await abandoned.hear()
    assert told["timed"].seconds > 25
    told["timed"].check("let go of", at_most=40)
    assert told["shown"]["status"] == "failed"
    assert told["shown"]["error"] == "The task was cancelled."
    (event,) = told["events"]
    assert (event["type"], event["reason"]) == ("Warning", "JobAbandoned")
    assert "may still be running" in event["message"]
    assert told["balance"]["balance_cents"] == 10_000


async def test_task_deleted_after_its_provider_has_its_job_stopped(world, client, simulate):
    await simulate({"behaviour": "stall", "match": {"prompt_contains": "Endless"}})
    model = make_provider(world, world.env["GATEWAY_SIMULATOR_URL"])
    body = client.body(model=model, prompt="Endless")
    answer = await wait_status(client, 202, client.tasks_path, method="POST", body=body)
    name = answer.body["id"].replace("_", "-", 1)
    wait_running(world, name)
    job = world.read("gatewaytask", name)["status"]["upstream"]["jobId"]
    world.run.kubectl("delete", "gatewayprovider", model)

    def is_known_gone():
        ready = read_ready(world, "gatewaymodel", model)
        return ready and ready["reason"] == "ProviderNotFound"

    # what the operator says of the model tells that it knows
    await wait_for(is_known_gone, what="ProviderNotFound")
    world.run.kubectl("delete", "gatewaymodel", model)
    world.run.kubectl("delete", "gatewaytask", name, "--timeout=20s")
    task = answer.body["id"]
    assert (await client.wait_terminal([task]))[task]["status"] == "failed"
    cancels = (await client.read_simulator())["cancels"]
    assert job in {entry["job_id"] for entry in cancels if entry["cancelled"]}
    assert list_events(world, name) == []
