"""kopf: all event handlers of the operator, its settings, and the run of its watches.

| kopf | here |
|---|---|
| startup | settings: no events, no peering, server-side selectors of work and shards |
| login | the connection of the process, with the same credentials |
| event | tasks, batches, files, uploads: to the controller of each kind; the heartbeat's Lease |
| cleanup | the watches that the failure of another has left |

Only the raw event feed is used: kopf's change handlers would write an annotation to every object
and run a coroutine for each. Server-side selectors leave out finished work and the shards of other
replicas, so a restart loads live work only.

Configuration kinds are not watched by kopf but by tables, one for each kind, which the controllers
decide by and readiness is reconciled from. Every decision needs them complete, and kopf tells
neither the end of its first list nor what was deleted while a watch was down. Probes are served by
`health`. `compose` shuts the controllers down, since kopf is also run again after a failure.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import aiohttp

from gateway_core.api.batch import GatewayBatch
from gateway_core.api.file import GatewayFile
from gateway_core.api.ids import GROUP, VERSION
from gateway_core.api.resource import Object
from gateway_core.api.task import GatewayTask
from gateway_core.api.upload import GatewayUpload
from gateway_core.concurrency import Supervisor
from gateway_core.egress.connector import send_through
from gateway_core.kube.connection import Connection, Credentials
from gateway_core.tasks.lifecycle import OPEN_SELECTOR
from gateway_operator.context import Shards


@contextmanager
def _not_installed(name: str) -> Iterator[None]:
    """Make imports of a package fail meanwhile, unless it was imported before."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]


# kopf imports `kubernetes` wherever it is installed, only to recognise its objects, which are not
# used here: a quarter of the CPU of the operator's imports, and 40 MB
with _not_installed("kubernetes"):
    import kopf as kopf

LONGEST_RESTART_SECONDS = 5.0
"""The longest back-off of kopf: the heartbeat exits a process without a feed for three beats."""
ERROR_BACKOFFS = [0.2, 0.5, 1, 2] + [3] * 200

TASKS = (GROUP, VERSION, GatewayTask.plural)
BATCHES = (GROUP, VERSION, GatewayBatch.plural)
FILES = (GROUP, VERSION, GatewayFile.plural)
UPLOADS = (GROUP, VERSION, GatewayUpload.plural)
LEASES = ("coordination.k8s.io", "v1", "leases")

Observe = Callable[[str | None, Object], None]
"""Called with the type of an event (None for what the first list shows, ADDED, MODIFIED, DELETED)
and the object, which is the callee's own; returns at once. An object that is no longer selected is
shown as DELETED, as it was before."""


def build_registry(
    *,
    tasks: Observe,
    batches: Observe,
    files: Observe,
    uploads: Observe,
    heartbeat: Callable[[str], None],
    login: Callable[[], Awaitable[kopf.AiohttpSession]],
    shards: Shards,
    lease: str,
    supervisor: Supervisor,
) -> kopf.OperatorRegistry:
    """All handlers."""
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    async def on_startup(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure(settings, shards, lease)

    @kopf.on.login(registry=registry)
    async def on_login(**_: Any) -> kopf.AiohttpSession:
        return await login()

    @kopf.on.cleanup(registry=registry)
    async def on_cleanup(**_: Any) -> None:
        await end_watches()

    @kopf.on.event(*TASKS, registry=registry)
    async def on_task(event: kopf.RawEvent, **_: Any) -> None:
        hand_on(tasks, event, GatewayTask.plural)

    @kopf.on.event(*BATCHES, registry=registry)
    async def on_batch(event: kopf.RawEvent, **_: Any) -> None:
        hand_on(batches, event, GatewayBatch.plural)

    @kopf.on.event(*FILES, registry=registry)
    async def on_file(event: kopf.RawEvent, **_: Any) -> None:
        hand_on(files, event, GatewayFile.plural)

    @kopf.on.event(*UPLOADS, registry=registry)
    async def on_upload(event: kopf.RawEvent, **_: Any) -> None:
        hand_on(uploads, event, GatewayUpload.plural)

    @kopf.on.event(*LEASES, registry=registry)
    async def on_lease(event: kopf.RawEvent, **_: Any) -> None:
        if event["type"] != "DELETED":
            heartbeat((event["object"].get("spec") or {}).get("renewTime", ""))

    def hand_on(observe: Observe, event: kopf.RawEvent, plural: str) -> None:
        # an exception would end kopf's worker of the object, and with it events that wait there
        with supervisor.guard("events", kind=plural):
            observe(event["type"], dict(event["object"]))

    return registry


async def end_watches() -> None:
    """Cancel kopf's watches and wait for their end.

    kopf leaves them running where one has failed. Five seconds later it cancels each together with
    its pause waiter, which the watch may take for a pause: it goes on, and kopf never returns.
    """
    watches = [task for task in asyncio.all_tasks() if task.get_name().startswith("watcher for ")]
    for watch in watches:
        watch.cancel()
    await asyncio.gather(*watches, return_exceptions=True)


@dataclass(frozen=True, kw_only=True)
class Login(kopf.AiohttpSession):
    """A session for kopf: the same API server with the same identity, by the same proxy."""

    aiohttp_session: aiohttp.ClientSession = field(repr=False, compare=False)
    connection: Connection = field(repr=False)
    credentials: Credentials = field(repr=False)


async def login_to(connection: Connection) -> Login:
    """Log in with credentials read anew; kopf repeats it after a 401.

    The login has no expiry of its own: kopf would interrupt all watches for it.
    """
    credentials = await asyncio.to_thread(connection.read_credentials)
    headers = list(connection.headers)
    if credentials.authorization is not None:
        headers.append(("Authorization", credentials.authorization))
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=connection.build_ssl(credentials) or True),
        headers=headers,
        middlewares=[partial(send_through, connection.proxy)] if connection.proxy else (),
    )
    return Login(
        server=connection.server,
        aiohttp_session=session,
        connection=connection,
        credentials=credentials,
    )


class NoDiffs(kopf.DiffBaseStorage):
    """Stores no last handled state, for which kopf copies each object: no handler uses it."""

    def build(self, *, body: kopf.Body, extra_fields: Any = None) -> kopf.BodyEssence:
        """Nothing of the object."""
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        """Nothing is stored."""
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """Nothing is stored."""


def configure(settings: kopf.OperatorSettings, shards: Shards, lease: str) -> None:
    """Set kopf's settings: no events, no peering, few idle workers, quick recovery."""
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.peering.mandatory = False
    # the same for every kind, and a file may have 200 KB: 8 MB at most
    settings.watching.chunk_size = 40
    settings.watching.server_timeout = 300
    settings.watching.inactivity_timeout = 70
    settings.watching.reconnect_backoff = 0.1
    settings.queueing.idle_timeout = 0.2
    settings.networking.request_timeout = 20
    settings.networking.connect_timeout = 3
    settings.networking.error_backoffs = ERROR_BACKOFFS
    settings.persistence.finalizer = f"{GROUP}/kopf"
    settings.persistence.diffbase_storage = NoDiffs()
    for resource in (TASKS, BATCHES, FILES, UPLOADS):
        if shards.selector:
            settings.watching.label_selectors[resource] = shards.selector
    for resource in (TASKS, BATCHES, UPLOADS):
        settings.watching.field_selectors[resource] = OPEN_SELECTOR
    settings.watching.field_selectors[LEASES] = f"metadata.name={lease}"


async def run_feed(
    registry: kopf.OperatorRegistry,
    *,
    namespace: str,
    ready: Callable[[], Awaitable[None]],
    stop: asyncio.Event,
) -> None:
    """Run kopf until `stop` is set, or until a signal that kopf has handled; raises what it raises.

    Once `ready` has returned, signals are the caller's, so RuntimeError where kopf returns without
    `stop`: one of its root tasks has ended. May be called again: kopf then begins with a list of
    all objects.
    """
    ready_flag = asyncio.Event()

    async def announce() -> None:
        await ready_flag.wait()
        await ready()

    announcer = asyncio.create_task(announce())
    stopping = asyncio.create_task(stop.wait())
    # kopf is cancelled, not asked to stop: if asked, it waits five seconds for tasks that are not
    # its own. Tasks that began before it are left alone either way.
    feed = asyncio.create_task(
        kopf.operator(
            registry=registry, standalone=True, namespaces=[namespace], ready_flag=ready_flag
        )
    )
    try:
        await asyncio.wait((feed, stopping), return_when=asyncio.FIRST_COMPLETED)
        if feed.done():
            feed.result()
            if announcer.done() and not stop.is_set():
                raise RuntimeError("kopf has ended by itself")
    finally:
        for task in (feed, announcer, stopping):
            task.cancel()
        await asyncio.gather(feed, announcer, stopping, return_exceptions=True)
