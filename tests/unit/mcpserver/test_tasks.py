"""The tools for tasks on fakes: the same task and charge as by REST."""

import asyncio

import orjson
import pytest

from gateway_mcpserver.tools import creation
from tests.unit.apiserver.gateway import COMPLETED, FAILED, MODEL, PATH, body, call
from tests.unit.mcpserver.gateway import McpGateway


@pytest.fixture
def gateway():
    return McpGateway()


async def test_task_is_recorded_and_named_at_once_without_wait(gateway):
    result = await gateway.create()
    content = result["structuredContent"]
    assert content["status"] == "processing"
    assert content["completed"] is False
    assert content["next_action"] == "get_task"
    assert "task_replayed" not in content
    (task,) = gateway.kube.list_objects("gatewaytasks")
    assert task["spec"]["request"]["accountName"] == "demo"


async def test_same_key_and_input_is_the_same_task_by_rest_and_by_mcp(gateway):
    made = (await gateway.create("shared"))["structuredContent"]
    by_rest = await call(
        gateway.app,
        "POST",
        PATH,
        headers=[
            ("authorization", f"Bearer {gateway.key}"),
            ("content-type", "application/json"),
            ("idempotency-key", "shared"),
        ],
        content=orjson.dumps(body()),
    )
    assert by_rest.json == {"id": made["task_id"], "status": "processing", "task_replayed": True}
    again = (await gateway.create("shared"))["structuredContent"]
    assert (again["task_id"], again["task_replayed"]) == (made["task_id"], True)
    assert len(gateway.kube.list_objects("gatewaytasks")) == 1


async def test_same_key_with_other_input_names_the_conflict(gateway):
    await gateway.create("one")
    result = await gateway.create(
        "one", params={"prompt": "a dog", "reference_image_urls": ["https://example.com/a.png"]}
    )
    assert result["isError"] is True
    assert "structuredContent" not in result
    assert "already used with different input" in result["content"][0]["text"]


async def test_problems_of_params_are_those_of_rest(gateway):
    result = await gateway.create(params={"prompt": "", "colour": "red"})
    assert result["isError"] is True
    text = result["content"][0]["text"]
    for name in ("prompt", "reference_image_urls", "colour"):
        assert f"{name}: " in text
    assert gateway.kube.list_objects("gatewaytasks") == []


async def test_params_nested_too_deeply_are_named(gateway):
    raw = orjson.dumps(
        {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {
                "name": "create_task",
                "arguments": {
                    "service": "sim",
                    "action": "reference_to_video",
                    "idempotency_key": "one",
                    "params": {"prompt": "deep"},
                },
            },
        }
    )
    nested = b"[" * 500 + b"]" * 500
    answer = await gateway.send(raw=raw.replace(b'"deep"', nested))
    result = answer.json["result"]
    assert result["isError"] is True
    assert "params: are nested too deeply." in result["content"][0]["text"]


async def test_many_creates_at_once_take_turns_and_none_is_dropped(gateway, monkeypatch):
    create, running, most = gateway.kube.create, 0, 0

    async def count(*given):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return await create(*given)

    monkeypatch.setattr(gateway.kube, "create", count)
    results = await asyncio.gather(*(gateway.create(f"key {n}") for n in range(40)))
    assert not any(result["isError"] for result in results)
    assert len(gateway.kube.list_objects("gatewaytasks")) == 40
    assert most <= creation.ACCOUNT_CREATES


PLACE = {"service": "sim", "action": "reference_to_video"}


async def test_tasks_are_listed_as_by_rest(gateway):
    made = [(await gateway.create(key))["structuredContent"]["task_id"] for key in "abc"]
    gateway.end_task(made[0], FAILED)
    by_rest = (await gateway.get("/api/v1/tasks", query="limit=2")).json
    listed = (await gateway.use("list_tasks", {"limit": 2}))["structuredContent"]
    assert listed == {
        "tasks": by_rest["data"],
        "has_more": True,
        "last_id": by_rest["last_id"],
    }
    rest = await gateway.use("list_tasks", {"after": made[1], "status": "failed"})
    assert [task["id"] for task in rest["structuredContent"]["tasks"]] == made[:1]
    foreign = await gateway.use("list_tasks", {"after": made[1]}, key=gateway.other_key)
    assert foreign["content"][0]["text"] == "Task not found."


async def test_task_is_cancelled_as_by_rest(gateway):
    task_id = (await gateway.create())["structuredContent"]["task_id"]
    for _ in range(2):
        shown = await gateway.use("cancel_task", {**PLACE, "task_id": task_id})
        assert shown["structuredContent"]["status"] == "processing"
    assert gateway.task_object(task_id)["spec"]["desiredState"] == "Cancelled"
    foreign = await gateway.use("cancel_task", {**PLACE, "task_id": task_id}, key=gateway.other_key)
    assert foreign["content"][0]["text"] == "Task not found."
    gateway.end_task(task_id, COMPLETED)
    late = await gateway.use("cancel_task", {**PLACE, "task_id": task_id})
    assert late["content"][0]["text"].startswith("The task has already completed.")


async def test_viewer_may_not_cancel(gateway):
    task_id = (await gateway.create())["structuredContent"]["task_id"]
    gateway.put_user("vera", {"demo": "viewer"})
    viewer = gateway.put_key("demo", createdBy="vera")
    shown = await gateway.use("cancel_task", {**PLACE, "task_id": task_id}, key=viewer)
    assert "viewer" in shown["content"][0]["text"]
    assert "desiredState" not in gateway.task_object(task_id)["spec"]


async def test_wrong_model_service_and_action_name_the_nearest(gateway):
    async def fail(tool, **arguments):
        result = await gateway.use(tool, arguments)
        assert result["isError"] is True
        return result["content"][0]["text"]

    task = {"service": "sim", "action": "reference_to_video", "idempotency_key": "one"}
    slip = MODEL[:-2]
    text = await fail("create_task", **task, params=body(model=slip))
    assert f"Did you mean {MODEL}? list_models lists the models." in text
    text = await fail("get_model_info", model=slip)
    assert f"Did you mean {MODEL}? list_models shows all." in text
    text = await fail("create_task", **{**task, "action": "image_to_video"}, params=body())
    assert "Did you mean sim/reference_to_video? list_models shows what there is." in text
