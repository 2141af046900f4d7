"""The deletion of the namespace, or of CRDs, under the running operator.

The API server deletes all objects then, in any order, and creates none any more. A deleted object
keeps its finalizer until the operator has done its part, which may be impossible now: no usage
object can be created for its charge, and the store or Redis may be removed too. Such steps are
given up, with a log line that says what is left, so that the finalizer is always removed.

Kubernetes begins to delete the content of a namespace 5 s after it is marked, and the operator's
pods and its Role are part of it. Therefore the operator deletes what has a finalizer at once, tasks
first, while it still has its rights. It also releases the other kinds with a finalizer: what those
wait for is deleted like they are.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from gateway_core.api.account import GatewayAccount, GatewayUser
from gateway_core.api.batch import GatewayBatch
from gateway_core.api.file import GatewayFile
from gateway_core.api.guardrail import GatewayGuardrail
from gateway_core.api.ids import REMAINS_FINALIZER
from gateway_core.api.key import GatewayKey
from gateway_core.api.oauth import GatewayGrant, GatewayOAuthClient
from gateway_core.api.resource import Object
from gateway_core.api.task import GatewayTask
from gateway_core.api.upload import GatewayUpload
from gateway_core.concurrency import map_bounded
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import KubernetesError, ObjectNotFound, Terminating
from gateway_core.kube.lists import list_pages
from gateway_core.storage.objects import StoreUnavailable

LOOK_SECONDS = 2.0
PATIENCE_SECONDS = 30.0
"""Time that finalizers of a terminating kind wait for a store that is away."""
LAST_WORK_SECONDS = 10.0
"""For jobs to be stopped after SIGTERM, if the namespace is being deleted."""

LAST_PAUSE_SECONDS = 0.2

KINDS = (GatewayTask.plural, GatewayBatch.plural, GatewayUpload.plural, GatewayFile.plural)
"""Kinds with a finalizer of the operator, in the order of their removal."""

OWNERS = (
    GatewayAccount.plural,
    GatewayUser.plural,
    GatewayOAuthClient.plural,
    GatewayKey.plural,
    GatewayGuardrail.plural,
    GatewayGrant.plural,
)
"""Kinds whose finalizer waits for what belongs to them, or for the archive of their rows."""

RELEASES_AT_ONCE = 16

_log = structlog.get_logger(__name__)


class LooksAgain(Protocol):
    """A controller whose objects may wait for what never comes."""

    def look_again(self) -> None:
        """Reconcile the objects that may be deleted."""
        ...


@dataclass(eq=False)
class Termination:
    """Which kinds of the gateway are being deleted as a whole.

    `deletes` is whether this replica deletes the objects of a terminating namespace.
    """

    kube: KubernetesClient
    deletes: bool = True
    is_of_namespace: bool = field(default=False, init=False)
    _since: dict[str, float] = field(default_factory=dict, init=False)
    _undeleted: list[str] = field(default_factory=list, init=False)
    _unreleased: list[str] = field(default_factory=list, init=False)
    _controllers: tuple["LooksAgain", ...] = field(default=(), init=False)

    def subscribe(self, *controllers: "LooksAgain") -> None:
        """Have them look again when a kind begins to terminate, and when its patience is over."""
        self._controllers += controllers

    def covers(self, plural: str) -> bool:
        """Return whether no object of that kind is to remain."""
        return plural in self._since

    def is_overdue(self, plural: str) -> bool:
        """Return whether finalizers of that kind have waited long enough for what is away."""
        since = self._since.get(plural)
        return since is not None and time.monotonic() - since >= PATIENCE_SECONDS

    @contextmanager
    def giving_up(self, plural: str, obj: Object, what: str) -> Iterator[None]:
        """Log what cannot be done any more for a deleted object, and go on without it.

        A create is refused for good; the store is awaited for `PATIENCE_SECONDS`.
        """
        try:
            yield
        except (StoreUnavailable, Terminating) as error:
            is_final = isinstance(error, Terminating) or self.is_overdue(plural)
            if not is_final or obj["metadata"].get("deletionTimestamp") is None:
                raise
            name = obj["metadata"]["name"]
            _log.warning("left behind at the removal", object=name, left=what, error=str(error))

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                await self.look()
            except KubernetesError as error:
                # after its Role is deleted the operator may read nothing: it goes by what it knows
                _log.debug("termination not read", error=str(error))
            await asyncio.sleep(LOOK_SECONDS)

    async def finish(self, is_stopping: Callable[[], bool]) -> None:
        """Go on stopping jobs for some seconds after SIGTERM: no successor can do it."""
        if not self.is_of_namespace:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORK_SECONDS):
                # the condition depends on all tasks, whose steps end one by one
                while is_stopping():  # noqa: ASYNC110
                    await asyncio.sleep(LAST_PAUSE_SECONDS)

    async def look(self) -> None:
        """Read what is terminating now. KubernetesError."""
        before = self._since.keys(), self._list_overdue()
        is_terminating = await self._is_namespace_terminating()
        if is_terminating and not self.is_of_namespace:
            _log.warning("the namespace is being deleted: jobs are stopped")
            self._undeleted = list(KINDS) if self.deletes else []
            self._unreleased = list(OWNERS) if self.deletes else []
        self.is_of_namespace = is_terminating
        creatable = frozenset[str]()
        if not self.is_of_namespace:
            creatable = await self.kube.list_creatable()
        now = time.monotonic()
        terminating = (kind for kind in (*KINDS, *OWNERS) if kind not in creatable)
        self._since = {kind: self._since.get(kind, now) for kind in terminating}
        if before != (self._since.keys(), self._list_overdue()):
            _log.info("kinds are being deleted", kinds=list(self._since))
            for controller in self._controllers:
                controller.look_again()
        while is_terminating and self._undeleted:
            await self.kube.delete_all(self._undeleted[0])
            del self._undeleted[0]
        while is_terminating and self._unreleased:
            await self._release(self._unreleased[0])
            del self._unreleased[0]

    async def _release(self, plural: str) -> None:
        """Remove the finalizer of all objects: what belongs to them is deleted like they are."""

        async def release(meta: Object) -> None:
            kept = [name for name in meta["finalizers"] if name != REMAINS_FINALIZER]
            with suppress(ObjectNotFound):
                await self.kube.patch(
                    plural, {"metadata": meta}, {"metadata": {"finalizers": kept}}
                )

        async for page in list_pages(self.kube, plural, metadata_only=True):
            metas = [obj["metadata"] for obj in page.items]
            held = [meta for meta in metas if REMAINS_FINALIZER in meta.get("finalizers", ())]
            await map_bounded(RELEASES_AT_ONCE, release, held)

    async def _is_namespace_terminating(self) -> bool:
        """Return whether the namespace is being deleted; unchanged where it cannot be read."""
        try:
            return await self.kube.is_namespace_terminating()
        except KubernetesError as error:
            _log.debug("namespace not read", error=str(error))
            return self.is_of_namespace

    def _list_overdue(self) -> list[str]:
        return [kind for kind in self._since if self.is_overdue(kind)]
