"""Tasks from an admin's side: made, watched, ended and deleted with kubectl."""

import re

import pytest
import yaml

from gateway_cli.cluster.errors import ClusterError
from tests.documents.blocks import ROOT, read_blocks
from tests.servers.tenants import (
    describe_guardrail,
    describe_task,
    make_key,
    read_balance,
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


async def test_example_of_the_page_runs_and_is_a_task_of_its_account(world, client, tmp_path):
    """That of docs/tasks.md, tasks.md for short."""
    example = (ROOT / "examples/tasks/task.yaml").read_text()
    assert read_blocks("docs/tasks.md")[0].text == example
    obj = yaml.safe_load(example)
    name = obj["metadata"]["name"] = unique("task-lighthouse")
    obj["spec"]["request"]["accountName"] = client.account
    path = tmp_path / "task.yaml"
    path.write_text(yaml.safe_dump(obj))
    for said in ("created", "unchanged"):
        assert world.run.kubectl("apply", "-f", str(path)).split()[-1] == said
    world.run.kubectl("wait", *FINISHED, f"gatewaytask/{name}")
    body = await client.poll(id_of(name))
    assert (body.status, body.body["status"]) == (200, "completed")
    [listed] = (await client.request("GET", "/api/v1/tasks")).body["data"]
    assert (listed["id"], listed["status"], listed["cost"]) == (id_of(name), "completed", 0.3)
    obj["spec"]["request"]["input"] = "{}"
    path.write_text(yaml.safe_dump(obj))
    with pytest.raises(ClusterError, match="may not be changed after creation"):
        world.run.kubectl("apply", "-f", str(path))


async def test_name_of_the_object_is_the_id_with_a_dash(world, ended):
    name = ended[2].replace("_", "-", 1)
    assert name in world.run.kubectl("get", "gatewaytask", name)
    with pytest.raises(ClusterError, match="not found"):
        world.run.kubectl("get", "gatewaytask", ended[2])


async def test_task_that_a_create_would_refuse_fails_at_once_and_costs_nothing(world, client):
    name = await make_task(client, prompt="", duration_seconds=99)
    world.run.kubectl("wait", *FINISHED, f"gatewaytask/{name}")
    body = (await client.poll(id_of(name))).body
    assert body["status"] == "failed"
    assert "prompt must not be blank" in body["error"]
    assert (await read_balance(client))["balance_cents"] == 10_000
    with pytest.raises(ClusterError, match=r"metadata\.name must be"):
        world.apply(describe_task(client, unique("made")), command="create")


def read_row(table):
    """The one row of what kubectl prints, by position: cells may be empty."""
    head, row = table.splitlines()
    starts = [match.start() for match in re.finditer(r"(?<=  )\S|^\S", head)]
    return {
        head[start:end].strip(): row[start:end].strip()
        for start, end in zip(starts, [*starts[1:], None], strict=True)
    }


async def test_columns_show_phase_cost_and_provider(world, ended):
    name = ended[2].replace("_", "-", 1)
    narrow = world.run.kubectl("get", "gatewaytasks", name)
    wide = world.run.kubectl("get", "gwtask", name, "-o", "wide")
    shown = read_row(narrow)
    assert list(shown) == [
        *("NAME", "ACCOUNT", "MODEL", "PHASE", "REASON", "COST", "MESSAGE", "AGE"),
    ]
    assert shown | {"MESSAGE": "", "AGE": ""} == {
        "NAME": name,
        "ACCOUNT": ended[1],
        "MODEL": world.env["GATEWAY_MODEL"],
        "PHASE": "Completed",
        "REASON": "Completed",
        "COST": "0.18",
        "MESSAGE": "",
        "AGE": "",
    }
    shown = read_row(wide)
    assert {"PROVIDER", "JOB", "KEY", "FINISHED", "MESSAGE"} <= set(shown)
    assert shown["PROVIDER"] == "simulated"
    assert shown["JOB"].startswith("job_")
    assert name in world.run.kubectl("get", "modelgateway")


async def test_describe_shows_conditions_and_failure(world, client, simulate, ended):
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


async def test_limits_are_shown_in_dollars_beside_what_is_used(world, client):
    limit = {"micros": 12_500_000, "window": "daily"}
    key = make_key(world, client.account, limit=limit)
    pool = describe_guardrail(unique("grd-pool"), client.account, key, limit=limit)
    world.apply(pool)
    for kind, name in (("gwkey", key.name), ("gatewayguardrails", pool["metadata"]["name"])):

        def read_row(kind=kind, name=name):
            columns = "-o=custom-columns=LIMIT:.status.limit,USED:.status.used"
            return world.run.kubectl("get", kind, name, columns).split()[2:] == ["12.50", "0.00"]

        await wait_for(read_row, what="the limit in dollars")
        head, row = world.run.kubectl("get", kind, name, "-o", "wide").splitlines()
        assert row[head.index("LIMIT") :].split()[0] == "12.50"
