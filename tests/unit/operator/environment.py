"""The surroundings of a simulated operator: a slow API server, counters on its clock, a feed."""

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Protocol, TypeVar

from gateway_core.api.resource import Object
from gateway_core.api.task import GatewayTask
from gateway_core.kube.client import WatchEvent
from gateway_operator.context import Failpoints, Shards
from tests.fakes.clock import START, run_to_end, wait_until
from tests.fakes.counters import FakeCounters
from tests.fakes.kubernetes import FakeKubernetes, copy_object, has_fields
from tests.fakes.objects import FakeObjects

T = TypeVar("T")

TASKS = GatewayTask.plural
BEGIN = datetime(2026, 11, 21, 10, tzinfo=UTC)


def read_now() -> datetime:
    return BEGIN + timedelta(seconds=asyncio.get_running_loop().time() - START)


class StepKills(Failpoints):
    """Kills the process at named steps, at each as often as it is named."""

    def __init__(self, steps: Iterable[str] = (), halt: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.left = Counter(steps)
        self.is_dead = False
        self._halt = halt

    def reach(self, name: str) -> None:
        assert name in self.names
        if not self.is_dead and self.left[name]:
            self.left[name] -= 1
            self.is_dead = True
            self._halt()
        if self.is_dead:
            raise asyncio.CancelledError


class Killable(ABC):
    """A simulated process that named steps kill, and that is started again."""

    failpoints: StepKills

    def __init__(self) -> None:
        self.failpoints = StepKills()

    def arm(self, *steps: str) -> None:
        self.failpoints = StepKills(steps, self.halt)

    @abstractmethod
    def halt(self) -> None:
        """Have the process do nothing more from this moment on."""

    @abstractmethod
    async def restart(self) -> Any:
        """Start the process again."""

    async def wait(
        self, condition: Callable[[], Any], *, seconds: float = 120, what: str = "condition"
    ) -> None:
        """Let time pass until `condition` is true."""
        await wait_until(condition, seconds=seconds, what=what)

    async def die(self) -> None:
        """Wait until a step has killed the process."""
        await self.wait(lambda: self.failpoints.is_dead, seconds=4000, what="death")

    @asynccontextmanager
    async def reviving(self) -> AsyncIterator[None]:
        """Start the process again whenever a step has killed it."""

        async def revive() -> None:
            while True:
                await self.wait(lambda: self.failpoints.is_dead, seconds=1e9)
                await self.restart()

        reviver = asyncio.create_task(revive())
        try:
            yield
        finally:
            reviver.cancel()
            await asyncio.gather(reviver, return_exceptions=True)


class RemoteRecords(FakeKubernetes):
    """Records behind a network: a write that was sent arrives, also after its sender's death."""

    latency = 0.004

    async def patch_status(self, plural: str, obj: Object, status: Mapping[str, Any]) -> Object:
        write = partial(super().patch_status, plural, copy_object(obj), status)
        return await self._send(write)

    async def replace_status(self, plural: str, obj: Object, status: Mapping[str, Any]) -> Object:
        whole = copy_object(dict(status))
        return await self._send(partial(super().replace_status, plural, copy_object(obj), whole))

    async def patch(self, plural: str, obj: Object, patch: Mapping[str, Any]) -> Object:
        return await self._send(partial(super().patch, plural, copy_object(obj), patch))

    async def get(self, plural: str, name: str) -> Object:
        await asyncio.sleep(self.latency)
        return await super().get(plural, name)

    async def read_secret(self, name: str) -> dict[str, bytes]:
        await asyncio.sleep(self.latency)
        return await super().read_secret(name)

    async def _send(self, write: Callable[[], Awaitable[T]]) -> T:
        async def arrive() -> T:
            await asyncio.sleep(self.latency / 2)
            try:
                return await write()
            finally:
                await asyncio.sleep(self.latency / 2)

        return await run_to_end(arrive)


class TickingCounters(FakeCounters):
    """Counters on virtual time."""

    @property
    def now(self) -> float:
        return read_now().timestamp()

    @now.setter
    def now(self, _: float) -> None:
        """The loop's time is the only one."""


class SlowObjects(FakeObjects):
    """Objects whose reading takes `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    async def get(self, key: str) -> bytes:
        await asyncio.sleep(self.seconds)
        return await super().get(key)


class Observer(Protocol):
    """A controller, as the feed knows it."""

    def observe(self, kind: str | None, obj: Object) -> None:
        """Takes in an event."""


class Feed:
    """What kopf shows of the objects that are not settled, `lag` seconds late."""

    def __init__(
        self,
        kube: FakeKubernetes,
        controller: Observer,
        lag: float,
        shards: Shards,
        plural: str = TASKS,
    ) -> None:
        self._plural = plural
        self._kube = kube
        self._shards = shards
        self._controller = controller
        self._lag = lag
        self._shown: dict[str, Object] = {}
        self.ended = False
        self.deaf = False
        for obj in kube.list_objects(plural):
            if self._selects(obj):
                self._shown[obj["metadata"]["name"]] = copy_object(obj)
                self._show(None, obj)
        kube.listen(plural, self._follow)

    def show_now(self, name: str) -> None:
        for obj in self._kube.list_objects(self._plural):
            if obj["metadata"]["name"] == name:
                self._take("MODIFIED", copy_object(obj))

    def _follow(self, change: WatchEvent) -> None:
        if not self.ended and not self.deaf:
            loop = asyncio.get_running_loop()
            loop.call_later(self._lag, self._take, change.type, copy_object(change.object))

    def _take(self, kind: str, obj: Object) -> None:
        name = obj["metadata"]["name"]
        before = self._shown.get(name)
        if kind != "DELETED" and self._selects(obj):
            self._shown[name] = obj
            self._show("MODIFIED" if before else "ADDED", obj)
        elif before is not None:
            # as the API server does: what it was, under the version that took it away
            version = {"resourceVersion": obj["metadata"]["resourceVersion"]}
            last = {**before, "metadata": {**before["metadata"], **version}}
            del self._shown[name]
            self._show("DELETED", last)

    def _selects(self, obj: Object) -> bool:
        labels = obj["metadata"].get("labels")
        return has_fields(obj, "status.work!=Settled") and self._shards.owns(labels)

    def _show(self, kind: str | None, obj: Object) -> None:
        if not self.ended:
            self._controller.observe(kind, copy_object(obj))
