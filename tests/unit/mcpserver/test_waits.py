"""Calls of `create_task` that wait: progress, deadline, and what ends a wait, on fakes."""

import asyncio
from collections import Counter
from contextlib import ExitStack

import orjson
import pytest

from gateway_core.api.errors import NotFound, OutcomeUnknown, Unavailable
from gateway_core.api.ids import id_to_name
from gateway_core.tasks.creation import TaskRecorder
from gateway_mcpserver.authentication import McpAuthenticator
from gateway_mcpserver.protocol import streaming, subscriptions
from gateway_mcpserver.tools import task_waits
from gateway_mcpserver.waiting import Wait, Waits
from gateway_web.http1.exchange import EXCHANGE_KEY
from tests.fakes.clock import in_virtual_time
from tests.servers.world import wait_for
from tests.unit.apiserver.gateway import MODEL
from tests.unit.mcpserver.gateway import META, MODERN, PARAMS, McpGateway, read_events

ARGUMENTS = {
    "service": "sim",
    "action": "reference_to_video",
    "model": MODEL,
    "params": PARAMS,
    "idempotency_key": "one",
}
EITHER = "application/json, text/event-stream"


@pytest.fixture
def gateway():
    return McpGateway()


def message(meta=None, request_id=1, **arguments):
    params = {"name": "create_task", "arguments": {**ARGUMENTS, **arguments}}
    if meta is not None:
        params["_meta"] = meta
    return {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}


def end_task(gateway, phase="Completed"):
    (task,) = gateway.kube.list_objects("gatewaytasks")
    status = {"phase": phase, "chargedMicros": 500_000}
    if phase == "Completed":
        status["result"] = {"videos": [{"url": "https://media.example.com/v.mp4"}]}
    else:
        status["failure"] = {"code": "generation_failed", "message": "No picture."}
    gateway.kube.put("gatewaytasks", {**task, "status": status})
    return task


async def wait_begun(gateway, count=1):
    async def has_begun():
        return metric(gateway, "gateway_mcp_waiting") == count

    await wait_for(has_begun)


async def begin_wait(gateway, meta=None, *, key="", accept=EITHER, **arguments):
    """A task that sends a call and awaits its answer, once it waits."""
    sent = gateway.send(message(meta, **arguments), key=key, accept=accept)
    waiting = asyncio.create_task(sent)
    await wait_begun(gateway)
    return waiting


def metric(gateway, name, **labels):
    return gateway.mcp_parts.registry.get_sample_value(name, labels)


def read_content(answer):
    result = answer.json["result"]
    assert result["isError"] is False
    return result["structuredContent"]


async def test_wait_ends_with_its_task_and_answers_json(gateway):
    waiting = await begin_wait(gateway)
    end_task(gateway)
    content = read_content(await waiting)
    assert content == {
        "task_id": content["task_id"],
        "status": "completed",
        "completed": True,
        "result": {
            "id": content["task_id"],
            "status": "completed",
            "videos": [{"url": "https://media.example.com/v.mp4"}],
            "usage": {"cost": 0.5},
        },
    }
    assert metric(gateway, "gateway_mcp_waiting") == 0
    assert metric(gateway, "gateway_mcp_waits_total", outcome="completed") == 1


async def test_failed_task_is_no_error_of_the_call(gateway):
    waiting = await begin_wait(gateway)
    end_task(gateway, "Failed")
    content = read_content(await waiting)
    assert (content["status"], content["completed"]) == ("failed", True)
    assert content["result"]["error"] == "No picture."


@in_virtual_time
async def test_wait_reads_nothing_by_name_while_the_watch_is_alive(gateway, monkeypatch):
    waiting = await begin_wait(gateway)
    read = gateway.kube.get
    reads = []

    async def get(plural, name):
        reads.append(name)
        return await read(plural, name)

    monkeypatch.setattr(gateway.kube, "get", get)
    (task,) = gateway.kube.list_objects("gatewaytasks")
    for phase in ("Submitting", "Running"):
        gateway.kube.put("gatewaytasks", {**task, "status": {"phase": phase}})
        await asyncio.sleep(0.01)
    end_task(gateway)
    assert read_content(await waiting)["completed"] is True
    assert reads == []


@in_virtual_time
async def test_deadline_is_no_error_and_names_the_next_step(gateway):
    answer = await gateway.send(message(timeout_ms=20))
    content = read_content(answer)
    assert content.pop("task_id")
    assert content.pop("task")["status"] == "processing"
    assert content == {
        "status": "processing",
        "completed": False,
        "wait_deadline_reached": True,
        "next_action": "get_task",
    }
    assert len(gateway.kube.list_objects("gatewaytasks")) == 1


@in_virtual_time
async def test_operator_of_the_gateway_bounds_the_wait_further():
    gateway = McpGateway(mcp_wait_seconds=0.02)
    content = read_content(await gateway.send(message(timeout_ms=300_000)))
    assert content["wait_deadline_reached"] is True


@pytest.mark.parametrize(
    "bad",
    [
        {"timeout_ms": 0},
        {"timeout_ms": 300_001},
        {"timeout_ms": "9"},
        {"poll_interval_ms": 999},
        {"wait": 1},
    ],
)
async def test_times_outside_their_bounds_are_errors(gateway, bad):
    answer = await gateway.send(message(**bad))
    assert answer.json["result"]["isError"] is True
    assert next(iter(bad)) in answer.json["result"]["content"][0]["text"]
    assert gateway.kube.list_objects("gatewaytasks") == []


@in_virtual_time
async def test_progress_is_sent_only_on_request_and_rises(gateway, monkeypatch):
    monkeypatch.setattr(streaming, "HEARTBEAT_SECONDS", 0.01)
    meta = {"progressToken": "p"}
    waiting = await begin_wait(gateway, meta, poll_interval_ms=1000, timeout_ms=60_000)
    await asyncio.sleep(1.1)
    end_task(gateway)
    answer = await waiting
    *notes, last = read_events(answer)
    assert len(notes) == 2
    values = [note["params"]["progress"] for note in notes]
    assert values == sorted(set(values))
    for note in notes:
        assert note["method"] == "notifications/progress"
        assert note["params"]["progressToken"] == "p"
        assert note["params"]["total"] == 60_000
        assert note["params"]["message"].startswith("task task_")
        assert note["params"]["message"].endswith(": processing")
    assert last["result"]["structuredContent"]["completed"] is True
    assert b": ping\n\n" in answer.body
    assert answer.headers["cache-control"] == "no-cache, no-transform"
    assert answer.headers["x-accel-buffering"] == "no"
    assert "content-length" not in answer.headers


@in_virtual_time
async def test_client_of_json_alone_gets_the_end_of_its_wait(gateway, monkeypatch):
    monkeypatch.setattr(streaming, "STREAM_AFTER_SECONDS", 0.02)
    monkeypatch.setattr(streaming, "HEARTBEAT_SECONDS", 0.02)
    meta = {"progressToken": "p"}
    waiting = await begin_wait(gateway, meta, timeout_ms=60_000, accept="application/json")
    # several heartbeats would be due
    await asyncio.sleep(0.1)
    assert not waiting.done()
    end_task(gateway)
    answer = await waiting
    assert answer.headers["content-type"] == "application/json"
    assert read_content(answer)["completed"] is True


@in_virtual_time
async def test_silent_wait_becomes_a_stream_of_heartbeats(gateway, monkeypatch):
    monkeypatch.setattr(streaming, "STREAM_AFTER_SECONDS", 0.02)
    monkeypatch.setattr(streaming, "HEARTBEAT_SECONDS", 0.02)
    answer = await gateway.send(message(timeout_ms=100))
    (only,) = read_events(answer)
    assert only["result"]["structuredContent"]["wait_deadline_reached"] is True
    assert answer.body.startswith(b": ping\n\n: ping\n\n")


@pytest.mark.parametrize("token", [1.5, True, {}, "x" * 257])
async def test_progress_token_is_a_short_string_or_an_integer(gateway, token):
    answer = await gateway.send(message({"progressToken": token}))
    assert answer.json["error"]["code"] == -32602


async def test_waits_beyond_the_bounds_return_at_once():
    gateway = McpGateway(mcp_max_concurrent_waits=3, mcp_max_account_waits=2)
    waiting = [
        asyncio.create_task(gateway.send(message(idempotency_key=name, request_id=name)))
        for name in ("a", "b")
    ]
    await wait_begun(gateway, 2)
    content = read_content(await gateway.send(message(idempotency_key="c")))
    assert content["wait_degraded"] == "concurrency_limit"
    assert (content["completed"], content["next_action"]) == (False, "get_task")
    # another account has its own bound, the process one for all
    other = asyncio.create_task(gateway.send(message(), key=gateway.other_key))
    await wait_begun(gateway, 3)
    third = gateway.put_key("guest")
    content = read_content(await gateway.send(message(idempotency_key="d"), key=third))
    assert content["wait_degraded"] == "concurrency_limit"
    assert len(gateway.kube.list_objects("gatewaytasks")) == 5
    gateway.mcp_drain.begin()
    await asyncio.gather(*waiting, other)
    assert metric(gateway, "gateway_mcp_waits_total", outcome="concurrency_limit") == 2


async def test_drain_ends_waits_with_the_next_step(gateway):
    waiting = await begin_wait(gateway)
    gateway.mcp_drain.begin()
    answer = await waiting
    assert read_content(answer)["next_action"] == "get_task"
    assert answer.headers["connection"] == "close"
    late = read_content(await gateway.send(message()))
    assert (late["task_replayed"], late["next_action"]) == (True, "get_task")


@in_virtual_time
async def test_cancellation_ends_the_wait_of_its_caller_and_never_the_task(gateway):
    def cancel(key, request_id):
        body = {
            "jsonrpc": "2.0",
            "method": "notifications/cancelled",
            "params": {"requestId": request_id},
        }
        return gateway.send(body, key=key)

    waiting = await begin_wait(gateway, request_id=1)
    for key, request_id in ((gateway.other_key, 1), (gateway.key, 8), (gateway.key, True)):
        assert (await cancel(key, request_id)).status == 202
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await cancel(gateway.key, 1)
    assert read_content(await waiting)["completed"] is False
    assert len(gateway.kube.list_objects("gatewaytasks")) == 1
    assert metric(gateway, "gateway_mcp_waits_total", outcome="cancelled") == 1


async def test_client_that_leaves_ends_its_wait_and_never_the_task(gateway):
    scopes = []
    original = gateway.mcp

    async def spy(scope, receive, send):
        scopes.append(scope)
        await original(scope, receive, send)

    gateway.mcp = spy
    waiting = await begin_wait(gateway)
    scopes[0][EXCHANGE_KEY].leave()
    answer = await waiting
    assert answer.status == 0
    assert metric(gateway, "gateway_mcp_waits_total", outcome="client_gone") == 1
    assert metric(gateway, "gateway_mcp_waiting") == 0
    (task,) = gateway.kube.list_objects("gatewaytasks")
    assert "deletionTimestamp" not in task["metadata"]


@in_virtual_time
async def test_wait_goes_on_while_its_key_cannot_be_checked(gateway, monkeypatch):
    monkeypatch.setattr(task_waits, "HEARTBEAT_SECONDS", 0.05)
    waiting = await begin_wait(gateway)
    checked = asyncio.Event()

    async def check(*_):
        checked.set()
        raise Unavailable("not now")

    monkeypatch.setattr(McpAuthenticator, "authenticate", check)
    await asyncio.wait_for(checked.wait(), 10)
    end_task(gateway)
    assert read_content(await asyncio.wait_for(waiting, 10))["completed"] is True


@in_virtual_time
async def test_wait_goes_on_while_the_kubernetes_api_is_silent(gateway, monkeypatch):
    monkeypatch.setattr(task_waits, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(task_waits, "QUIET_SECONDS", 0.02)
    waiting = await begin_wait(gateway)
    table = gateway.mcp_tables["gatewaytasks"]
    table.cut, table.staleness = True, 60.0
    end_task(gateway)
    assert read_content(await asyncio.wait_for(waiting, 10))["completed"] is True


@in_virtual_time
async def test_task_that_is_removed_is_an_error_of_the_call(gateway, monkeypatch):
    monkeypatch.setattr(streaming, "STREAM_AFTER_SECONDS", 0.01)
    waiting = await begin_wait(gateway)
    await asyncio.sleep(0.05)
    (task,) = gateway.kube.list_objects("gatewaytasks")
    gateway.kube.remove("gatewaytasks", task["metadata"]["name"])
    (only,) = read_events(await waiting)
    assert set(only["result"]) == {"content", "isError"}
    assert only["result"]["isError"] is True
    assert only["result"]["content"][0]["text"].startswith("Task not found. The task_id is task_")
    assert metric(gateway, "gateway_mcp_waits_total", outcome="not_found") == 1


@in_virtual_time
async def test_slow_create_becomes_a_stream(gateway, monkeypatch):
    monkeypatch.setattr(streaming, "STREAM_AFTER_SECONDS", 0.02)
    monkeypatch.setattr(streaming, "HEARTBEAT_SECONDS", 0.02)
    create = gateway.kube.create_or_get

    async def create_slowly(*given, **more):
        await asyncio.sleep(0.1)
        return await create(*given, **more)

    monkeypatch.setattr(gateway.kube, "create_or_get", create_slowly)
    answer = await gateway.send(message(wait=False))
    (only,) = read_events(answer)
    assert only["result"]["structuredContent"]["next_action"] == "get_task"
    assert answer.body.startswith(b": ping\n\n: ping\n\n")


@in_virtual_time
async def test_subscription_is_acknowledged_first_and_ends_with_the_process(gateway):
    body = {
        "jsonrpc": "2.0",
        "id": "s",
        "method": "subscriptions/listen",
        "params": {"_meta": META, "notifications": {"toolsListChanged": True}},
    }
    headers = {"mcp_protocol_version": MODERN, "mcp_method": "subscriptions/listen"}
    listening = asyncio.create_task(gateway.send(body, **headers))
    await asyncio.sleep(0.05)
    assert not listening.done()
    gateway.mcp_drain.begin()
    first, last = read_events(await listening)
    meta = {"io.modelcontextprotocol/subscriptionId": "s"}
    assert first == {
        "jsonrpc": "2.0",
        "method": "notifications/subscriptions/acknowledged",
        "params": {"notifications": {}, "_meta": meta},
    }
    assert last["id"] == "s"
    assert last["result"]["resultType"] == "complete"
    assert last["result"]["_meta"].items() >= meta.items()
    assert orjson.dumps(last)


@in_virtual_time
async def test_subscription_that_has_ended_leaves_room_for_another(gateway, monkeypatch):
    monkeypatch.setattr(subscriptions, "STREAM_SECONDS", 0.0)
    body = {
        "jsonrpc": "2.0",
        "id": "s",
        "method": "subscriptions/listen",
        "params": {"_meta": META, "notifications": {}},
    }
    headers = {"mcp_protocol_version": MODERN, "mcp_method": "subscriptions/listen"}
    for _ in range(subscriptions.MOST_ACCOUNT_STREAMS + 1):
        _, last = read_events(await gateway.send(body, **headers))
        assert "result" in last


@in_virtual_time
async def test_many_waits_end_together():
    gateway = McpGateway()
    gateway.put_account("demo", requestsPerMinute=10_000, unlimited=True)
    waiting = [
        asyncio.create_task(gateway.send(message(idempotency_key=str(n), request_id=n)))
        for n in range(100)
    ]
    await wait_begun(gateway, 100)
    for task in gateway.kube.list_objects("gatewaytasks"):
        status = {"phase": "Completed", "result": {"videos": []}}
        gateway.kube.put("gatewaytasks", {**task, "status": status})
    contents = [read_content(answer) for answer in await asyncio.gather(*waiting)]
    assert all(content["completed"] for content in contents)
    assert len({content["task_id"] for content in contents}) == 100
    assert id_to_name(contents[0]["task_id"])


@in_virtual_time
async def test_response_becomes_a_stream_by_the_age_of_its_request(gateway, monkeypatch):
    monkeypatch.setattr(streaming, "STREAM_AFTER_SECONDS", 0.3)
    create = gateway.kube.create
    waited = []

    async def create_slowly(*given):
        await asyncio.sleep(0.2)
        return await create(*given)

    monkeypatch.setattr(gateway.kube, "create", create_slowly)
    original = gateway.mcp

    async def spy(scope, receive, send):
        clock = asyncio.get_running_loop().time
        began, exchange = clock(), scope[EXCHANGE_KEY]
        begin = exchange.begin

        def note(status, headers):
            waited.append(clock() - began)
            begin(status, headers)

        exchange.begin = note
        await original(scope, receive, send)

    gateway.mcp = spy
    read_events(await gateway.send(message(timeout_ms=400)))
    assert waited[0] == pytest.approx(0.3)


async def test_cancellation_while_the_task_is_made_ends_the_wait(gateway, monkeypatch):
    create, reached, gate = gateway.kube.create, asyncio.Event(), asyncio.Event()

    async def create_late(*given):
        reached.set()
        await gate.wait()
        return await create(*given)

    monkeypatch.setattr(gateway.kube, "create", create_late)
    waiting = asyncio.create_task(gateway.send(message(request_id=7)))
    await reached.wait()
    cancelled = {"method": "notifications/cancelled", "params": {"requestId": 7}}
    assert (await gateway.send({"jsonrpc": "2.0", **cancelled})).status == 202
    gate.set()
    content = read_content(await asyncio.wait_for(waiting, 10))
    assert (content["completed"], content["next_action"]) == (False, "get_task")
    assert len(gateway.kube.list_objects("gatewaytasks")) == 1


@in_virtual_time
async def test_revoked_key_ends_its_wait_within_a_heartbeat(gateway, monkeypatch):
    monkeypatch.setattr(task_waits, "HEARTBEAT_SECONDS", 0.05)
    key = gateway.put_key("demo")
    waiting = await begin_wait(gateway, key=key)
    await asyncio.sleep(0.12)
    assert not waiting.done()
    for obj in gateway.kube.list_objects("gatewaykeys"):
        if obj["metadata"]["name"] != "demo":
            gateway.kube.put("gatewaykeys", {**obj, "spec": {**obj["spec"], "disabled": True}})
    result = (await asyncio.wait_for(waiting, 10)).json["result"]
    assert result["isError"] is True
    assert "structuredContent" not in result
    assert metric(gateway, "gateway_mcp_waits_total", outcome="revoked") == 1


@pytest.mark.parametrize("failure", [NotFound("Task not found."), RuntimeError("broken")])
@pytest.mark.parametrize("meta", [None, {"progressToken": "p"}])
async def test_wait_that_fails_is_an_error_of_the_call(gateway, monkeypatch, failure, meta):
    looks = 0

    async def look(self, pending, now):
        nonlocal looks
        looks += 1
        if looks > 1:
            raise failure
        return None, now + 0.02

    monkeypatch.setattr(task_waits.TaskWaiter, "_look", look)
    answer = await gateway.send(message(meta))
    reply = read_events(answer)[-1] if meta else answer.json
    assert reply["id"] == 1
    assert reply["result"]["isError"] is True
    (text,) = reply["result"]["content"]
    (task,) = gateway.kube.list_objects("gatewaytasks")
    assert f"The task_id is {task['metadata']['name'].replace('-', '_', 1)}." in text["text"]
    assert "broken" not in text["text"]


async def test_replay_of_an_ended_task_needs_no_room_to_wait():
    gateway = McpGateway(mcp_max_concurrent_waits=1)
    first = await begin_wait(gateway)
    end_task(gateway)
    made = read_content(await first)
    other = await begin_wait(gateway, idempotency_key="two", request_id=2)
    for wait in (True, False):
        again = read_content(await gateway.send(message(wait=wait)))
        assert again == {**made, "task_replayed": True}
    assert not metric(gateway, "gateway_mcp_waits_total", outcome="concurrency_limit")
    gateway.mcp_drain.begin()
    await other


def test_accounts_leave_room_for_the_waits_of_others():
    class NoTasks:
        def subscribe(self, _):
            pass

    waits = Waits(NoTasks(), most=1000, per_account=600)
    with ExitStack() as stack:
        held = Counter()
        for account in ("a", "b", "c", "d"):
            while stack.enter_context(waits.enter(account, "task", Wait())):
                held[account] += 1
        assert held["a"] == 600
        assert held["d"] > 0


async def test_bad_arguments_count_in_the_rate_of_the_account(gateway):
    gateway.put_account("demo", requestsPerMinute=3)
    for bad in ({"service": "none"}, {"timeout_ms": 0}, {"params": {"prompt": 5}}):
        assert (await gateway.send(message(**bad))).json["result"]["isError"] is True
    result = (await gateway.send(message())).json["result"]
    assert result["isError"] is True
    assert "Try again in" in result["content"][0]["text"]
    assert gateway.kube.list_objects("gatewaytasks") == []


async def test_unknown_outcome_names_the_key_and_the_task(gateway, monkeypatch):
    async def lose(*_, **__):
        raise OutcomeUnknown("The task was not acknowledged in time.")

    monkeypatch.setattr(TaskRecorder, "record", lose)
    result = (await gateway.send(message())).json["result"]
    assert result["isError"] is True
    text = result["content"][0]["text"]
    assert "Call create_task again with the same idempotency_key" in text
    assert "The task_id is task_" in text
