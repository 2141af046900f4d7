"""kopf: every event handler of the operator, its settings, and the run of its watches.

Only the raw event feed is used: kopf's change handlers would write an annotation to every object
and run a coroutine for each. Server-side selectors leave out finished work and the shards of other
replicas, so a restart loads live work only.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gateway_core.api.ids import GROUP, VERSION
from gateway_core.api.resource import Object, Resource
from gateway_core.concurrency import Supervisor
from gateway_operator.shards import Shards


@contextmanager
def _not_installed(name: str) -> Iterator[None]:
    """Makes imports of a package fail meanwhile, unless it was imported before."""
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

Login = Callable[[], kopf.ConnectionInfo]
LONGEST_RESTART_SECONDS = 5.0
"""Back-off of kopf at most: the heartbeat ends a process that has no feed for three beats."""
LEASE_RESOURCE = ("coordination.k8s.io", "v1", "leases")


@dataclass(frozen=True, slots=True)
class Followed:
    """A kind whose objects of this replica's shards are watched.

    `observe` is called with the type of each event (None for what was there at the start, ADDED,
    MODIFIED, DELETED) and its object, which is the receiver's own, and returns at once. Objects
    that come not to be selected by `fields` any more are told as DELETED, as they were before.
    """

    kind: type[Resource]
    observe: Callable[[str | None, Object], None]
    fields: str = ""

    @property
    def resource(self) -> tuple[str, str, str]:
        """The kind as kopf takes it."""
        return (GROUP, VERSION, self.kind.plural)


class NoDiffs(kopf.DiffBaseStorage):
    """Keeps no last handled state: kopf copies each object for it, and no handler here asks."""

    def build(self, *, body: kopf.Body, extra_fields: Any = None) -> kopf.BodyEssence:
        """Nothing of the object."""
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        """Nothing is stored."""
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """Nothing is stored."""


def build_registry(
    followed: Iterable[Followed],
    heard_heartbeat: Callable[[str], None],
    login: Login,
    supervisor: Supervisor,
) -> kopf.OperatorRegistry:
    """The handlers: events of each kind, and this replica's heartbeat through the watch."""
    registry = kopf.OperatorRegistry()

    def on_login(**_: Any) -> kopf.ConnectionInfo:
        return login()

    def hand_to(kind: Followed) -> Callable[..., Awaitable[None]]:
        async def hand_on(event: kopf.RawEvent, **_: Any) -> None:
            # kopf names initial events None; the body is a plain dict of our own from here on
            with supervisor.guard("events", kind=kind.kind.plural):
                kind.observe(event["type"], dict(event["object"]))

        hand_on.__name__ = f"on_{kind.kind.plural}"
        return hand_on

    async def on_lease(event: kopf.RawEvent, **_: Any) -> None:
        spec = event["object"].get("spec") or {}
        if event["type"] != "DELETED":
            heard_heartbeat(spec.get("renewTime", ""))

    kopf.on.login(registry=registry)(on_login)
    for kind in followed:
        kopf.on.event(*kind.resource, registry=registry)(hand_to(kind))
    kopf.on.event(*LEASE_RESOURCE, registry=registry)(on_lease)
    return registry


def build_settings(
    followed: Iterable[Followed], shards: Shards, lease_name: str
) -> kopf.OperatorSettings:
    """kopf's settings: no events, no peering, few idle workers, quick recovery."""
    settings = kopf.OperatorSettings()
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
    settings.networking.error_backoffs = [0.2, 0.5, 1, 2] + [3] * 200
    settings.persistence.finalizer = f"{GROUP}/kopf"
    settings.persistence.diffbase_storage = NoDiffs()
    for kind in followed:
        if kind.fields:
            settings.watching.field_selectors[kind.resource] = kind.fields
        if shards.selector:
            settings.watching.label_selectors[kind.resource] = shards.selector
    settings.watching.field_selectors[LEASE_RESOURCE] = f"metadata.name={lease_name}"
    return settings


async def run_feed(
    registry: kopf.OperatorRegistry,
    settings: kopf.OperatorSettings,
    *,
    namespace: str,
    ready: Callable[[], Awaitable[None]],
    stop: asyncio.Event,
) -> None:
    """Runs kopf until `stop` is set, or until a signal that kopf has taken; raises what it raises.

    Once `ready` has returned, signals are the caller's, so RuntimeError where kopf returns without
    `stop`: one of its root tasks has ended. May be called again: kopf begins with a list of
    everything then.
    """
    ready_flag = asyncio.Event()

    async def announce() -> None:
        await ready_flag.wait()
        await ready()

    announcer = asyncio.create_task(announce())
    stopping = asyncio.create_task(stop.wait())
    # kopf is cancelled, not asked to stop: asked, it waits five seconds for tasks that are not its
    # own. Those that began before it are left alone either way.
    feed = asyncio.create_task(
        kopf.operator(
            registry=registry,
            settings=settings,
            standalone=True,
            namespaces=[namespace],
            ready_flag=ready_flag,
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
