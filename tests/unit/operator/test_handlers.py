"""kopf's handlers: what is watched, where events go, and what ends no watch."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import kopf
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from yarl import URL

from gateway_core.api.ids import SHARD_LABEL, SHARDS
from gateway_core.api.resource import Object
from gateway_core.concurrency import Supervisor
from gateway_core.kube.connection import Connection
from gateway_operator import handlers
from gateway_operator.context import Shards
from gateway_operator.handlers import BATCHES, FILES, LEASES, TASKS, UPLOADS, configure, send_surely
from gateway_operator.settings import Settings

LEASE = "lease"
KINDS = (TASKS, BATCHES, FILES, UPLOADS)


def configured(shards: Shards) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    configure(settings, shards, "n", LEASE)
    return settings


def labels(shards: Shards) -> str:
    selectors: dict[object, str] = configured(shards).watching.label_selectors
    found = {selectors.get(resource, "") for resource in KINDS}
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


def test_finished_work_and_other_namespaces_are_left_out() -> None:
    selectors = configured(Shards()).watching.field_selectors
    for resource in (TASKS, BATCHES, UPLOADS):
        assert selectors[resource] == "metadata.namespace=n,status.work!=Settled"
    assert selectors[FILES] == "metadata.namespace=n"
    assert selectors[LEASES] == "metadata.namespace=n,metadata.name=lease"


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


def test_kopf_writes_to_no_object() -> None:
    settings = configured(Shards())
    assert settings.peering.standalone is True
    assert settings.scanning.disabled is True
    registry = kopf.get_default_registry()
    assert not registry._changing.get_all_handlers()
    assert not registry._spawning.get_all_handlers()


def test_requests_are_repeated_without_end() -> None:
    backoffs = configured(Shards()).networking.error_backoffs
    for _ in range(2):
        pauses = iter(backoffs)  # type: ignore[arg-type]
        assert [next(pauses) for _ in range(6)] == [0.2, 0.5, 1.0, 2.0, 3.0, 3.0]


async def test_operator_of_all_namespaces_is_refused() -> None:
    settings = kopf.OperatorSettings()
    settings.peering.clusterwide = True
    with pytest.raises(kopf.PermanentError, match="-n"):
        await handlers.start(settings=settings, memo=kopf.Memo())


class Controller:
    """Takes the events of a kind."""

    def __init__(self, plural: str, seen: list[tuple[str, str | None, Object]]) -> None:
        self._plural = plural
        self._seen = seen

    def observe(self, kind: str | None, obj: Object) -> None:
        self._seen.append((self._plural, kind, obj))
        if kind == "ADDED":
            raise KeyError("a defect")


async def test_events_reach_the_controller_of_their_kind() -> None:
    seen: list[tuple[str, str | None, Object]] = []
    failures = list[str]()
    operator = SimpleNamespace(
        supervisor=Supervisor(failures.append),
        controllers={plural: Controller(plural, seen) for _, _, plural in KINDS},
    )
    for _, _, plural in KINDS:
        for kind in (None, "ADDED"):
            await handlers.observe(
                event={"type": kind, "object": {"metadata": {"name": plural}}},
                resource=SimpleNamespace(plural=plural),
                memo=kopf.Memo(operator=operator),
            )
    assert seen == [
        (plural, kind, {"metadata": {"name": plural}})
        for _, _, plural in KINDS
        for kind in (None, "ADDED")
    ]
    assert failures == ["events"] * len(KINDS)


@pytest.mark.parametrize("kind", [None, "MODIFIED", "DELETED"])
async def test_heartbeat_is_heard_unless_its_lease_is_deleted(kind: str | None) -> None:
    heard = list[bool]()
    operator = SimpleNamespace(hear=lambda: heard.append(True))
    event = {"type": kind, "object": {"metadata": {"name": LEASE}}}
    await handlers.hear_heartbeat(event=event, memo=kopf.Memo(operator=operator))
    assert heard == [True] * (kind != "DELETED")


@pytest.mark.parametrize("is_lost", [False, True])
async def test_liveness_probe_fails_once_the_watch_is_dead(is_lost: bool) -> None:
    operator = SimpleNamespace(heartbeat=SimpleNamespace(is_lost=is_lost))
    probing = handlers.probe(memo=kopf.Memo(operator=operator))
    if is_lost:
        with pytest.raises(kopf.PermanentError, match="watch is dead"):
            await probing
    else:
        assert await probing == "ok"


LIST = "https://api/apis/modelgateway.dev/v1alpha1/namespaces/n/gatewaytasks"


class Response:
    """An answer with a status."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


async def send(answer: Callable[[], Awaitable[Any]], url: str = LIST, method: str = "GET") -> Any:
    failures = list[str]()
    request: Any = SimpleNamespace(method=method, url=URL(url))
    try:
        return await send_surely(Supervisor(failures.append), request, lambda _: answer())
    except Exception as error:
        error.add_note(",".join(failures))
        raise


@pytest.mark.parametrize(
    ("status", "error"), [(404, aiohttp.ClientConnectionError), (410, aiohttp.ClientPayloadError)]
)
async def test_removed_kind_and_expired_list_end_no_watch(
    status: int, error: type[Exception]
) -> None:
    response = Response(status)

    async def answer() -> Response:
        return response

    with pytest.raises(error):
        await send(answer)
    assert response.is_closed
    assert await send(answer, method="POST") is response
    # kopf reads from it that a kind is not there
    assert await send(answer, "https://api/apis/modelgateway.dev/v1alpha1") is response


async def test_unexpected_exception_is_counted_and_the_request_repeated() -> None:
    async def fail() -> Any:
        raise RuntimeError("File descriptor 25 is used by transport")

    with pytest.raises(aiohttp.ClientConnectionError, match="File descriptor") as failure:
        await send(fail)
    assert failure.value.__notes__ == ["feed"]


@pytest.mark.parametrize("error", [aiohttp.ClientPayloadError("cut"), TimeoutError()])
async def test_errors_of_the_network_are_left_to_kopf(error: Exception) -> None:
    async def fail() -> Any:
        raise error

    with pytest.raises(type(error)) as failure:
        await send(fail)
    assert failure.value is error
    assert failure.value.__notes__ == [""]


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
    f"/apis/{TASKS[0]}/{TASKS[1]}": {"resources": [describe(plural) for _, _, plural in KINDS]},
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


@pytest.fixture
def operator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """What runs kopf against a server, with an operator that `stop` stops."""
    monkeypatch.setattr(handlers, "configure_logging", lambda *_: None)
    monkeypatch.setenv("GATEWAY_SECRETS_DIR", str(tmp_path))
    monkeypatch.setenv("GATEWAY_STORE_DIR", str(tmp_path))
    monkeypatch.setenv("GATEWAY_MEDIA_URL", "http://127.0.0.1")

    async def run(serve: Any, stop: Callable[[], Awaitable[None]]) -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", serve)
        async with TestServer(app) as server:

            async def start_operator(_: Settings) -> Any:
                connection = Connection(str(server.make_url("")))
                return SimpleNamespace(connection=connection, supervisor=Supervisor(), stop=stop)

            monkeypatch.setattr(handlers, "start_operator", start_operator)
            async with asyncio.timeout(15):
                await kopf.operator(namespaces=["n"], standalone=True)

    return run


async def test_failed_watch_stops_the_operator_in_order(operator: Any) -> None:
    stopped = list[bool]()

    async def stop() -> None:
        stopped.append(True)

    with pytest.raises(Exception, match="Error in the watch-stream"):
        await operator(serve_failing_watch, stop)
    assert stopped == [True]
    assert not [task for task in asyncio.all_tasks() if "watcher" in task.get_name()]


async def test_second_signal_while_it_stops_is_no_error(operator: Any) -> None:
    errors = list[Any]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    served = list[str]()

    async def serve(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return web.json_response(DISCOVERY.get(request.path, NO_OBJECTS))
        if not served:
            os.kill(os.getpid(), signal.SIGTERM)
        served.append(request.path)
        await asyncio.sleep(60)
        raise AssertionError

    async def stop() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.1)

    await operator(serve, stop)
    assert not errors


async def test_wrong_setting_is_named_without_its_value(
    operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEWAY_REPLICAS", "many")
    with pytest.raises(kopf.PermanentError, match=r"^GATEWAY_REPLICAS: [^;]+integer") as failure:
        await handlers.start(settings=kopf.OperatorSettings(), memo=kopf.Memo())
    assert "many" not in str(failure.value)
