"""Client of the Kubernetes API for the objects of one namespace.

On aiohttp and plain dictionaries: a call costs a third of the CPU of the generated clients.
"""

from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote

import orjson
from aiohttp import ClientTimeout

from gateway_core.api.ids import API_VERSION, GROUP, REQUEST_ID_ANNOTATION
from gateway_core.api.resource import Object
from gateway_core.kube.clock import CLOCK
from gateway_core.kube.errors import (
    AlreadyExists,
    KubernetesUnavailable,
    ObjectNotFound,
    Terminating,
    WriteConflict,
    raise_for_status,
)
from gateway_core.kube.retries import retry_write
from gateway_core.kube.transport import (
    CONNECT_SECONDS,
    JSON,
    Transport,
)

_SIZE_METRIC = b"apiserver_storage_size_bytes{"
_LEASES = "/apis/coordination.k8s.io/v1"
_METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list: items, the list's resourceVersion, and the token of the next page."""

    items: list[Object]
    resource_version: str
    next_token: str | None


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """An event of a watch: `type` is ADDED, MODIFIED, DELETED or BOOKMARK."""

    type: str
    object: Object


class Created(NamedTuple):
    """The object of a name, and whether this call created it."""

    object: Object
    is_new: bool


class KubernetesClient(Transport):
    """Reads and writes of the objects of one namespace; `plural` names their kind.

    Every method raises KubernetesUnavailable where nothing was done, and RequestForbidden without
    the right; a method that writes raises WriteOutcomeUnknown where it may have been applied.
    Writes of an object that was read are compare-and-set on its resourceVersion: they never
    overwrite a version that the caller has not seen, and raise WriteConflict or ObjectNotFound.
    """

    async def create(self, plural: str, obj: Mapping[str, Any]) -> Object:
        """Create an object; of concurrent creates of one name one succeeds.

        AlreadyExists; Terminating where the namespace or the kind is being deleted.
        """
        try:
            return await self.call("POST", self._path(plural), body=obj)
        except ObjectNotFound as error:
            # a proxy, or an API server that starts, may answer so for a moment
            is_namespace = error.message.startswith("namespaces ")
            if not is_namespace and plural in await self.list_creatable():
                raise KubernetesUnavailable(str(error), status=404) from error
            raise Terminating(str(error), status=404, message=error.message) from error

    async def get(self, plural: str, name: str) -> Object:
        """Return the newest version, a consistent read. ObjectNotFound."""
        return await self.call("GET", self._path(plural, name))

    async def create_or_get(
        self,
        plural: str,
        obj: Object,
        *,
        around: Callable[[], AbstractAsyncContextManager[object]] = nullcontext,
    ) -> Created:
        """Create an object, or get the one of its name; retries until one of them is certain.

        Each create runs within `around()`. Raises as `retry_write`.
        """
        sent = False

        def note_sent() -> None:
            nonlocal sent
            sent = True

        async def attempt() -> Created:
            try:
                async with around():
                    return Created(await self.create(plural, obj), is_new=True)
            except AlreadyExists as error:
                exists = error
            try:
                found = await self.get(plural, obj["metadata"]["name"])
            except (ObjectNotFound, KubernetesUnavailable):
                raise exists from None
            return Created(found, is_new=_is_of_same_call(found, obj, sent=sent))

        return await retry_write(attempt, note_sent=note_sent)

    async def update(
        self,
        plural: str,
        read: Callable[[], Awaitable[Object]],
        decide: Callable[[Object], Mapping[str, Any] | None],
    ) -> Object:
        """Merge the patch that `decide` makes of the object; None leaves it. The new object.

        The object is read and decided on again after a conflict or a lost answer, so `decide` must
        recognise its own change. Raises as `retry_write`, and what `read` and `decide` raise.
        """

        async def attempt() -> Object:
            obj = await read()
            patch = decide(obj)
            if patch is None:
                return obj
            try:
                return await self.patch(plural, obj, patch)
            except ObjectNotFound as error:
                # deleted after the read, which the next read reports in the caller's own words
                raise WriteConflict(str(error)) from error

        return await retry_write(attempt)

    async def list_page(
        self,
        plural: str,
        *,
        limit: int | None = None,
        token: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        metadata_only: bool = False,
        at_version: str = "",
    ) -> Page:
        """Return one page of a consistent list: at most `limit` objects, and some megabytes.

        So a page may have fewer objects than `limit` and a token nevertheless. With `at_version`,
        the resourceVersion of another list, also of another kind: the objects at that moment (all
        kinds of the gateway share etcd's one sequence of versions).

        Raises:
            VersionExpired: the token or version is older than some minutes.
        """
        query: dict[str, str] = {}
        if at_version and not token:
            query |= {"resourceVersion": at_version, "resourceVersionMatch": "Exact"}
        selectors = {
            "continue": token,
            "labelSelector": label_selector,
            "fieldSelector": field_selector,
        }
        query |= {name: value for name, value in selectors.items() if value}
        sizes = self._pages["metadata" if metadata_only else "objects", plural]
        accept = _METADATA_LIST if metadata_only else JSON
        answer = await self._call_page(self._path(plural), query, accept, sizes, limit)
        items, meta = answer["items"] or [], answer["metadata"]
        return Page(items, meta["resourceVersion"], meta.get("continue") or None)

    async def watch(
        self,
        plural: str,
        *,
        resource_version: str,
        timeout_seconds: int,
        field_selector: str = "",
        metadata_only: bool = False,
    ) -> AsyncIterator[WatchEvent]:
        """Events after `resource_version`, with bookmarks, until the server's time-out.

        With a selector, an object that comes to match is ADDED, one that no longer does DELETED.

        Raises:
            VersionExpired: the events since that version are compacted.
        """
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(timeout_seconds),
        }
        if field_selector:
            query["fieldSelector"] = field_selector
        # the server ends the stream after its time-out: a connection silent for longer is dead
        timeout = ClientTimeout(
            total=None, sock_connect=CONNECT_SECONDS, sock_read=timeout_seconds + 1
        )
        what, accept = f"watch of {plural}", _METADATA if metadata_only else JSON
        async with self._stream(
            self._path(plural), what=what, accept=accept, params=query, timeout=timeout
        ) as lines:
            async for line in lines:
                event = orjson.loads(line)
                if event["type"] == "ERROR":
                    raise_for_status(event["object"].get("code", 500), line, writes=False)
                yield WatchEvent(event["type"], event["object"])

    async def patch(self, plural: str, obj: Object, patch: Mapping[str, Any]) -> Object:
        """Merge `patch` into metadata and spec."""
        return await self._patch(self._path(plural, obj["metadata"]["name"]), obj, patch)

    async def patch_status(self, plural: str, obj: Object, status: Mapping[str, Any]) -> Object:
        """Merge `status`."""
        path = self._path(plural, obj["metadata"]["name"])
        return await self._patch(f"{path}/status", obj, {"status": status})

    async def _patch(self, path: str, obj: Object, patch: Mapping[str, Any]) -> Object:
        version = {"resourceVersion": obj["metadata"]["resourceVersion"]}
        body = {**patch, "metadata": {**patch.get("metadata", {}), **version}}
        return await self.call("PATCH", path, body=body)

    async def replace_status(self, plural: str, obj: Object, status: Mapping[str, Any]) -> Object:
        """Replace the status of `obj`, a whole object; fields that `status` lacks are removed."""
        path = f"{self._path(plural, obj['metadata']['name'])}/status"
        # the answer is metadata alone: the rest would be what was sent
        body = {**obj, "status": dict(status)}
        answer = await self.call("PUT", path, body=body, accept=_METADATA)
        return {**body, "metadata": answer["metadata"]}

    async def delete(
        self, plural: str, name: str, *, uid: str = "", version: str = ""
    ) -> Object | None:
        """Delete an object, only that `uid` or `version` where given. Idempotent.

        The object as it stands where a finalizer keeps it, None where it is gone. WriteConflict.
        """
        expected = {"uid": uid, "resourceVersion": version}
        preconditions = {field: value for field, value in expected.items() if value}
        body = {"preconditions": preconditions} if preconditions else {}
        try:
            answer = await self.call("DELETE", self._path(plural, name), body=body)
        except ObjectNotFound:
            return None
        return None if answer.get("kind") == "Status" else answer

    async def delete_all(self, plural: str) -> None:
        """Delete all objects of a kind; those with a finalizer remain until it is removed."""
        await self.call("DELETE", self._path(plural))

    async def is_namespace_terminating(self) -> bool:
        """Return whether the namespace is being deleted. ObjectNotFound proves nothing."""
        path = f"/api/v1/namespaces/{self._namespace}"
        # from the API server's cache: every operator asks all the time
        namespace = await self.call("GET", path, query={"resourceVersion": "0"})
        if "deletionTimestamp" in namespace["metadata"]:
            # the cache may still have one that was deleted and made again
            namespace = await self.call("GET", path)
        return "deletionTimestamp" in namespace["metadata"]

    async def list_creatable(self) -> frozenset[str]:
        """Return the kinds of the gateway that are served and whose CRDs are not being deleted."""
        try:
            # discovery needs no right to CRDs, which are not of the namespace
            served = await self.call("GET", f"/apis/{API_VERSION}")
        except ObjectNotFound as error:
            await self._check_absence(error)
            return frozenset()
        return frozenset(kind["name"] for kind in served["resources"] if "create" in kind["verbs"])

    async def _check_absence(self, error: ObjectNotFound) -> None:
        """Raise KubernetesUnavailable unless the API server itself serves no kind of the gateway.

        A proxy, or one that starts, may answer 404 to anything.
        """
        try:
            groups = (await self.call("GET", "/apis"))["groups"]
        except ObjectNotFound:
            raise KubernetesUnavailable(str(error), status=404) from error
        if any(group["name"] == GROUP for group in groups):
            raise KubernetesUnavailable(str(error), status=404) from error

    async def read_etcd_size(self) -> int:
        """Bytes allocated for the API server's database, from its metrics."""
        # the metrics have megabytes: read line by line
        async with self._stream("/metrics", what="metrics", accept="text/plain") as lines:
            sizes = [
                float(line.rsplit(b" ", 1)[1])
                async for line in lines
                if line.startswith(_SIZE_METRIC)
            ]
        if not sizes:
            raise KubernetesUnavailable("the Kubernetes API reports no size of its database")
        return int(max(sizes))

    async def read_secret(self, name: str) -> dict[str, bytes]:
        """Return the decoded data of a Secret. ObjectNotFound.

        Callers keep it out of logs and objects.
        """
        secret = await self.call_core("GET", "secrets", name)
        return {key: b64decode(value) for key, value in (secret.get("data") or {}).items()}

    async def find_lease(self, name: str) -> tuple[Object | None, int]:
        """Return the Lease `name`, None if there is none, and the record's version.

        The list is consistent.
        """
        query = {"fieldSelector": f"metadata.name={name}"}
        answer = await self.call("GET", self._path("leases", root=_LEASES), query=query)
        items = answer["items"] or [None]
        return items[0], int(answer["metadata"]["resourceVersion"])

    async def renew_lease(
        self,
        name: str,
        holder: str,
        *,
        annotations: Mapping[str, str] | None = None,
        version: str | None = None,
    ) -> None:
        """Write the present time into the Lease `name`; create it if need be.

        With `version`, the one that was read, it is compare-and-set: WriteConflict.
        """
        renewed = CLOCK.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        meta = {"annotations": annotations or {}}
        body = {"metadata": meta, "spec": {"holderIdentity": holder, "renewTime": renewed}}
        path = self._path("leases", name, root=_LEASES)
        try:
            if version is None:
                await self.call("PATCH", path, body=body)
            else:
                await self._patch(path, {"metadata": {"resourceVersion": version}}, body)
        except ObjectNotFound:
            head = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
            lease = {**head, **body, "metadata": {**meta, "name": name}}
            await self.call("POST", self._path("leases", root=_LEASES), body=lease)

    async def call_core(
        self, method: str, plural: str, name: str = "", *, body: Mapping[str, Any] | None = None
    ) -> Object:
        """Return the answer to a call of a kind of the core API group."""
        return await self.call(method, self._path(plural, name, root="/api/v1"), body=body)

    def _path(self, plural: str, name: str = "", *, root: str = f"/apis/{API_VERSION}") -> str:
        collection = f"{root}/namespaces/{self._namespace}/{plural}"
        return f"{collection}/{quote(name, safe='')}" if name else collection


def _is_of_same_call(found: Object, obj: Object, *, sent: bool) -> bool:
    """Return whether `found` is `obj`, as an earlier attempt of the same call created it."""
    wanted = (obj["metadata"].get("annotations") or {}).get(REQUEST_ID_ANNOTATION)
    if wanted is None:
        return sent and bool(found["spec"] == obj["spec"])
    return bool((found["metadata"].get("annotations") or {}).get(REQUEST_ID_ANNOTATION) == wanted)
