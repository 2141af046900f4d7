"""The Kubernetes API as the installation's steps need it: apply and create.

Made by `gateway_cli.compose`. Waits for what a fresh installation is still lacking: an API server
that is starting, and kinds whose CRD was accepted a moment ago.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from gateway_cli.cluster import Object
from gateway_cli.cluster.calls import APPLY_PATCH, FIELD_MANAGER, ClusterCalls
from gateway_cli.cluster.errors import (
    Conflict,
    NotServed,
    NotThere,
    Overloaded,
    Unreachable,
)

PATIENCE_SECONDS = 60.0
PAUSE_SECONDS = 0.5
MOST_ATTEMPTS = 8
"""How often an object is adapted anew because somebody else's change came between."""
_PASSING = (Conflict, NotServed, NotThere, Overloaded, Unreachable)
"""Not now, but perhaps in a moment."""

Result = TypeVar("Result")
Adapt = Callable[[Object | None], Object]
"""What to apply, by what is there: None where nothing is."""


class ClusterApi:
    """One cluster; each call is repeated for `patience` seconds where it may yet succeed."""

    def __init__(self, calls: ClusterCalls, patience: float = PATIENCE_SECONDS) -> None:
        self._calls = calls
        self._patience = patience
        self._resources: dict[tuple[str, str], tuple[str, bool]] = {}

    async def apply(self, obj: Object, adapt: Adapt | None = None) -> None:
        """Server-side apply: makes or changes the fields given, leaves all others.

        With `adapt`, what it makes of the object that is there is applied in place of `obj`; if it
        names the version that it was made of, it is made anew after somebody else's change.

        Raises:
            ClusterError: it is refused, or the kind is not served in time.
        """
        name = obj["metadata"]["name"]

        async def send() -> None:
            path = f"{await self._find_path(obj)}/{name}"
            if adapt is None:
                await self._apply(path, obj)
                return
            for _ in range(1, MOST_ATTEMPTS):
                with contextlib.suppress(Conflict):
                    await self._apply(path, adapt(await self._find(path)))
                    return
            await self._apply(path, adapt(await self._find(path)))

        await self._insist(send)

    async def create(self, obj: Object) -> Object:
        """Creates the object.

        Raises:
            AlreadyThere: one of that name exists; it is left as it is.
            ClusterError: it is refused.
        """

        async def send() -> Object:
            path = await self._find_path(obj)
            return await self._calls.call("POST", path, obj, {"fieldManager": FIELD_MANAGER})

        return await self._insist(send)

    async def _apply(self, path: str, obj: Object) -> None:
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        await self._calls.call("PATCH", path, obj, query, APPLY_PATCH)

    async def _find(self, path: str) -> Object | None:
        try:
            return await self._calls.call("GET", path)
        except NotThere:
            return None

    async def _find_path(self, obj: Object) -> str:
        """The path of the collection that `obj` belongs to."""
        group, kind = str(obj["apiVersion"]), str(obj["kind"])
        root = f"/apis/{group}" if "/" in group else f"/api/{group}"
        if (group, kind) not in self._resources:
            listed = await self._calls.call("GET", root)
            for resource in listed.get("resources") or ():
                if "/" not in resource["name"]:
                    found = resource["name"], bool(resource["namespaced"])
                    self._resources[group, resource["kind"]] = found
        if (group, kind) not in self._resources:
            raise NotServed(f"the cluster serves no {kind} in {group}")
        plural, namespaced = self._resources[group, kind]
        if not namespaced:
            return f"{root}/{plural}"
        namespace = obj["metadata"].get("namespace", self._calls.namespace)
        return f"{root}/namespaces/{namespace}/{plural}"

    async def _insist(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """What `work` gives, repeated while what is wrong may pass."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                return await work()
            except _PASSING:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(PAUSE_SECONDS)
