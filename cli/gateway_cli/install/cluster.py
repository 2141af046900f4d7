"""The Kubernetes API as the installation's steps need it: apply, create, read.

Made by `gateway_cli.compose`. Waits for what a fresh installation is still lacking: an API server
that is starting, and kinds whose CRD was accepted a moment ago.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

import aiohttp

PATIENCE_SECONDS = 60.0
PAUSE_SECONDS = 0.5
FIELD_MANAGER = "gatewayctl"

Object = dict[str, Any]
Result = TypeVar("Result")


class ClusterError(Exception):
    """The Kubernetes API refused or could not be reached; the text is what it says."""


class AlreadyThere(ClusterError):
    """An object of that name is there."""


class NotYet(ClusterError):
    """Not now, but perhaps in a moment: no connection, no such kind yet, or too much load."""


class ClusterApi:
    """One cluster, with one namespace for objects that name none."""

    def __init__(self, session: aiohttp.ClientSession, namespace: str) -> None:
        self._session = session
        self.namespace = namespace
        self._resources: dict[tuple[str, str], tuple[str, bool]] = {}

    async def apply(self, obj: Object) -> None:
        """Server-side apply: makes or changes the fields given, leaves all others.

        Raises:
            ClusterError: it is refused, or the kind is not served after a minute.
        """
        name = obj["metadata"]["name"]
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}

        async def send() -> Object:
            path = await self._find_path(obj)
            content_type = "application/apply-patch+yaml"
            return await self._call("PATCH", f"{path}/{name}", obj, query, content_type)

        await _insist(send)

    async def create(self, obj: Object) -> Object:
        """Creates the object.

        Raises:
            AlreadyThere: one of that name exists; it is left as it is.
            ClusterError: it is refused.
        """

        async def send() -> Object:
            path = await self._find_path(obj)
            return await self._call("POST", path, obj, {"fieldManager": FIELD_MANAGER})

        return await _insist(send)

    async def read_secret(self, name: str) -> Object:
        """A Secret. ClusterError."""
        path = f"/api/v1/namespaces/{self.namespace}/secrets/{name}"
        return await _insist(lambda: self._call("GET", path))

    async def _find_path(self, obj: Object) -> str:
        """The path of the collection that `obj` belongs to."""
        group, kind = str(obj["apiVersion"]), str(obj["kind"])
        root = f"/apis/{group}" if "/" in group else f"/api/{group}"
        if (group, kind) not in self._resources:
            listed = await self._call("GET", root)
            for resource in listed.get("resources") or ():
                if "/" not in resource["name"]:
                    found = resource["name"], bool(resource["namespaced"])
                    self._resources[group, resource["kind"]] = found
        if (group, kind) not in self._resources:
            raise NotYet(f"the cluster serves no {kind} in {group}")
        plural, namespaced = self._resources[group, kind]
        if not namespaced:
            return f"{root}/{plural}"
        return f"{root}/namespaces/{obj['metadata'].get('namespace', self.namespace)}/{plural}"

    async def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        headers = {"Content-Type": content_type, "Accept": "application/json"}
        try:
            async with self._session.request(
                method, path, params=query, json=body, headers=headers
            ) as response:
                answer: Object = await response.json(content_type=None)
                status = response.status
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise NotYet(f"{method} {path}: {error or type(error).__name__}") from error
        if status < 300:
            return answer
        text = f"{method} {path}: {status} {answer.get('message', '')}"
        if status == 409 and answer.get("reason") == "AlreadyExists":
            raise AlreadyThere(text)
        if status in (404, 409, 429) or status >= 500:
            raise NotYet(text)
        raise ClusterError(text)


async def _insist(work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """What `work` gives, repeated for a minute while the answer is NotYet."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return await work()
        except NotYet:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(PAUSE_SECONDS)
