"""kopf: what it is told to watch, what its end means, and that it loads no other client."""

import asyncio
import importlib
import sys
from collections.abc import Callable
from typing import Any

import aiohttp
import kopf
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

import gateway_operator
from gateway_core.api.ids import SHARD_LABEL, SHARDS
from gateway_core.api.resource import Object
from gateway_core.concurrency import Supervisor
from gateway_operator import handlers
from gateway_operator.context import Shards
from gateway_operator.handlers import (
    BATCHES,
    FILES,
    LEASES,
    TASKS,
    UPLOADS,
    Observe,
    build_registry,
    configure,
    run_feed,
)

LEASE = "lease"


def configured(shards: Shards) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    configure(settings, shards, LEASE)
    return settings


def labels(shards: Shards) -> str:
    selectors: dict[object, str] = configured(shards).watching.label_selectors
    found = {selectors.get(resource, "") for resource in (TASKS, BATCHES, FILES, UPLOADS)}
    [selector] = found
    return selector


def is_selected(selector: str, shard: str | None) -> bool:
    """As the API server reads `key in (…)` and `key notin (…)`; notin takes what has no label."""
    if not selector:
        return True
    key, operator, values = selector.split(" ", 2)
    assert key == SHARD_LABEL
    listed = values.strip("()").split(",")
    return (shard in listed) if operator == "in" else (shard not in listed)


def test_finished_work_is_left_out() -> None:
    settings = configured(Shards())
    for resource in (TASKS, BATCHES, UPLOADS):
        assert settings.watching.field_selectors[resource] == "status.work!=Settled"
    assert FILES not in settings.watching.field_selectors
    assert settings.watching.field_selectors[LEASES] == "metadata.name=lease"


def test_one_replica_watches_everything() -> None:
    assert labels(Shards()) == ""


@pytest.mark.parametrize("replicas", [2, 3, 5, 16])
def test_every_task_has_one_owner(replicas: int) -> None:
    owned = [Shards.divide(replicas, ordinal) for ordinal in range(replicas)]
    for shard in (*map(str, range(SHARDS)), None, "nonsense", "16"):
        owners = [i for i, shards in enumerate(owned) if is_selected(labels(shards), shard)]
        expected = int(shard) % replicas if shard and shard.isdigit() and int(shard) < 16 else 0
        assert owners == [expected], shard
        given = {} if shard is None else {SHARD_LABEL: shard}
        assert [i for i, shards in enumerate(owned) if shards.owns(given)] == owners


def test_kopf_writes_nothing() -> None:
    settings = configured(Shards())
    assert settings.posting.enabled is False
    assert settings.peering.standalone is True
    assert isinstance(settings, kopf.OperatorSettings)


async def log_in(server: str) -> kopf.AiohttpSession:
    return kopf.AiohttpSession(server=server, aiohttp_session=aiohttp.ClientSession())


def build(
    observe: Callable[[str], Observe], server: str = "https://localhost"
) -> kopf.OperatorRegistry:
    return build_registry(
        tasks=observe("gatewaytasks"),
        batches=observe("gatewaybatches"),
        files=observe("gatewayfiles"),
        uploads=observe("gatewayuploads"),
        heartbeat=lambda _: None,
        login=lambda: log_in(server),
        shards=Shards(),
        lease=LEASE,
        supervisor=Supervisor(),
    )


async def test_each_kind_has_its_own_observer() -> None:
    seen: list[tuple[str, str | None, Object]] = []
    registry = build(lambda plural: lambda event, obj: seen.append((plural, event, obj)))
    handlers = {str(h.selector): h for h in registry._watching.get_all_handlers()}
    kinds = ("gatewaytasks", "gatewaybatches", "gatewayfiles", "gatewayuploads")
    for plural in kinds:
        (handler,) = (h for text, h in handlers.items() if plural in text)
        await handler.fn(event={"type": None, "object": {"metadata": {"name": plural}}})
    assert seen == [(plural, None, {"metadata": {"name": plural}}) for plural in kinds]


async def test_startup_configures_kopf() -> None:
    registry = build(lambda _plural: lambda _event, _obj: None)
    [handler] = [h for h in registry._activities._handlers if h.activity.value == "startup"]
    settings = kopf.OperatorSettings()
    await handler.fn(settings=settings)
    assert settings.watching.field_selectors[LEASES] == "metadata.name=lease"


async def run_to_end(
    monkeypatch: pytest.MonkeyPatch, *, becomes_ready: bool, stop: asyncio.Event
) -> None:
    ready = asyncio.Event()

    async def operate(*, ready_flag: asyncio.Event, **_: Any) -> None:
        if becomes_ready:
            ready_flag.set()
            await ready.wait()
            await asyncio.sleep(0)

    async def mark_ready() -> None:
        ready.set()

    monkeypatch.setattr(handlers.kopf, "operator", operate)
    await run_feed(kopf.OperatorRegistry(), namespace="n", ready=mark_ready, stop=stop)


async def test_return_of_kopf_after_ready_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="ended by itself"):
        await run_to_end(monkeypatch, becomes_ready=True, stop=asyncio.Event())


async def test_return_of_kopf_before_ready_is_a_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    await run_to_end(monkeypatch, becomes_ready=False, stop=asyncio.Event())


async def test_return_of_kopf_after_stop_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = asyncio.Event()
    stop.set()
    await run_to_end(monkeypatch, becomes_ready=True, stop=stop)


def describe(plural: str, *, namespaced: bool = True) -> dict[str, Any]:
    verbs = ["list", "watch", "patch"]
    names = {"name": plural, "singularName": "", "kind": plural}
    return {**names, "namespaced": namespaced, "verbs": verbs}


DISCOVERY: dict[str, Any] = {
    "/api": {"versions": ["v1"]},
    "/api/v1": {"resources": [describe("namespaces", namespaced=False)]},
    "/apis": {
        "groups": [
            {
                "name": group,
                "versions": [{"version": version}],
                "preferredVersion": {"version": version},
            }
            for group, version, _ in (TASKS, LEASES)
        ]
    },
    f"/apis/{TASKS[0]}/{TASKS[1]}": {
        "resources": [describe(kind[2]) for kind in (TASKS, BATCHES, FILES, UPLOADS)]
    },
    f"/apis/{LEASES[0]}/{LEASES[1]}": {"resources": [describe(LEASES[2])]},
}
NO_OBJECTS = {"metadata": {"resourceVersion": "1"}, "items": []}


async def serve_failing_watch(request: web.Request) -> web.StreamResponse:
    """Answer as an API server of which the watch of files fails and the others are silent."""
    if "watch" not in request.query:
        return web.json_response(DISCOVERY.get(request.path, NO_OBJECTS))
    if request.path.endswith(FILES[2]):
        return web.json_response({"type": "ERROR", "object": {"code": 500}})
    await asyncio.sleep(60)
    raise AssertionError


async def test_kopf_ends_when_one_of_its_watches_fails() -> None:
    app = web.Application()
    app.router.add_get("/{path:.*}", serve_failing_watch)
    async with TestServer(app) as server:
        registry = build(lambda _plural: lambda _event, _obj: None, str(server.make_url("")))

        async def mark_ready() -> None:
            return

        async with asyncio.timeout(15):
            with pytest.raises(Exception, match="Error in the watch-stream"):
                await run_feed(registry, namespace="n", ready=mark_ready, stop=asyncio.Event())
    assert not [task for task in asyncio.all_tasks() if "watcher" in task.get_name()]


def test_operator_imports_kopf_without_kubernetes(monkeypatch: pytest.MonkeyPatch) -> None:
    # the new modules are this test's alone
    monkeypatch.setattr(gateway_operator, "handlers", handlers)
    for name in list(sys.modules):
        if name.partition(".")[0] in ("kopf", "kubernetes") or name == handlers.__name__:
            monkeypatch.delitem(sys.modules, name)
    importlib.import_module(handlers.__name__)
    assert "kopf" in sys.modules
    assert "kubernetes" not in sys.modules


def test_package_can_be_imported_after_kopf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    with handlers._not_installed("colorsys"), pytest.raises(ImportError):
        importlib.import_module("colorsys")
    importlib.import_module("colorsys")
