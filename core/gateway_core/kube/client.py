"""Client of the Kubernetes API on aiohttp: a third of the CPU of the generated clients per call."""

import asyncio
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Self
from urllib.parse import quote

import aiohttp
import orjson

from gateway_core.api.ids import GROUP, VERSION
from gateway_core.kube.clock import CLOCK, follow_clock
from gateway_core.kube.connection import (
    MOST_PAGE_BYTES,
    Connection,
    PageSizes,
    PageTooLong,
    raise_for,
    read_body,
    read_lines,
)
from gateway_core.kube.records import (
    FIRST_PAGE,
    AlreadyExists,
    Change,
    Missing,
    Object,
    Page,
    RecordFull,
    RecordOutcomeUnknown,
    Records,
    RecordUnavailable,
    Refused,
)

CONNECT_SECONDS = 3.0
CALL_SECONDS = 10.0
TOKEN_LIFE_SECONDS = 60.0
_MERGE = "application/merge-patch+json"
_SIZE_METRIC = b"apiserver_storage_size_bytes{"
_METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_METADATA_OF_ONE = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"


class KubeRecords(Records):
    """One namespace of one cluster. An asynchronous context manager; one for each event loop.

    `note_full` is called for every write that is refused for lack of space. A call, with its
    repetitions after 429, takes `call_seconds` at most.
    """

    def __init__(
        self,
        connection: Connection,
        namespace: str,
        *,
        pool: int = 64,
        note_full: Callable[[], object] = lambda: None,
        call_seconds: float = CALL_SECONDS,
    ) -> None:
        self._connection = connection
        self._namespace = namespace
        self._pool = pool
        self._note_full = note_full
        self._call_seconds = call_seconds
        self._root = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}"
        self._core = f"/api/v1/namespaces/{namespace}"
        self._token: tuple[float, str | None] = (-TOKEN_LIFE_SECONDS, None)
        self._session: aiohttp.ClientSession | None = None
        self._pages = PageSizes()

    async def __aenter__(self) -> Self:
        ssl_context = await asyncio.to_thread(self._connection.build_ssl)
        connector = aiohttp.TCPConnector(
            limit=self._pool, ssl=ssl_context or True, keepalive_timeout=60
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=self._call_seconds, sock_connect=CONNECT_SECONDS),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def create(self, plural: str, obj: Mapping[str, Any]) -> Object:
        """Creates; see the port."""
        return await self.call("POST", f"{self._root}/{plural}", body=obj)

    async def get(self, plural: str, name: str) -> Object:
        """The newest object; see the port."""
        return await self.call("GET", f"{self._root}/{plural}/{quote(name, safe='')}")

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
        """One page of a consistent list; see the port."""
        query: dict[str, str] = {}
        if at_version and not token:
            query |= {"resourceVersion": at_version, "resourceVersionMatch": "Exact"}
        if token:
            query["continue"] = token
        if label_selector:
            query["labelSelector"] = label_selector
        if field_selector:
            query["fieldSelector"] = field_selector
        raw = await self._read_page(plural, limit, query, metadata_only=metadata_only)
        answer = orjson.loads(raw)
        found = len(answer["items"] or ())
        self._pages.note(plural, found, len(raw), metadata_only=metadata_only)
        meta = answer["metadata"]
        return Page(answer["items"] or [], meta["resourceVersion"], meta.get("continue") or None)

    async def watch(
        self, plural: str, *, resource_version: str, timeout_seconds: int, field_selector: str = ""
    ) -> AsyncIterator[Change]:
        """Changes since `resource_version`; see the port.

        The connection must show something for as long as the server is to keep it open and a
        little more, else it counts as dead.
        """
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(timeout_seconds),
        }
        if field_selector:
            query["fieldSelector"] = field_selector
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_SECONDS, sock_read=timeout_seconds + 1
        )
        sent = time.monotonic()
        try:
            async with self._open(
                "GET", f"{self._root}/{plural}", query=query, timeout=timeout
            ) as response:
                follow_clock(response, sent)
                if response.status != 200:
                    raise_for(response.status, await response.read(), writes=False)
                async for line in read_lines(response.content):
                    event = orjson.loads(line)
                    if event["type"] == "ERROR":
                        raise_for(event["object"].get("code", 500), line, writes=False)
                    yield Change(event["type"], event["object"])
        except (aiohttp.ClientError, TimeoutError, OSError, orjson.JSONDecodeError) as error:
            raise RecordUnavailable(f"watch of {plural}: {type(error).__name__}") from error

    async def patch_status(self, plural: str, obj: Object, status: Mapping[str, Any]) -> Object:
        """Merges the status, compare-and-set; see the port."""
        return await self._patch(
            f"{plural}/{obj['metadata']['name']}/status", obj, {"status": status}
        )

    async def replace_status(self, plural: str, obj: Object, status: Mapping[str, Any]) -> Object:
        """Replaces the status, compare-and-set; see the port."""
        path = f"{self._root}/{plural}/{obj['metadata']['name']}/status"
        # the rest of the answer would be what was sent
        body = {**obj, "status": dict(status)}
        answer = await self.call("PUT", path, body=body, accept=_METADATA_OF_ONE)
        return {**body, "metadata": answer["metadata"]}

    async def patch(self, plural: str, obj: Object, patch: Mapping[str, Any]) -> Object:
        """Merges anything but the status, compare-and-set; see the port."""
        return await self._patch(f"{plural}/{obj['metadata']['name']}", obj, patch)

    async def delete(
        self, plural: str, name: str, *, uid: str = "", version: str = ""
    ) -> Object | None:
        """Deletes; see the port."""
        expected = {"uid": uid, "resourceVersion": version}
        preconditions = {field: value for field, value in expected.items() if value}
        body = {"preconditions": preconditions} if preconditions else {}
        try:
            answer = await self.call(
                "DELETE", f"{self._root}/{plural}/{quote(name, safe='')}", body=body
            )
        except Missing:
            return None
        return None if answer.get("kind") == "Status" else answer

    async def read_size(self) -> int:
        """Bytes allocated for the API server's database; see the port.

        From its metrics, which have megabytes: read line by line.
        """
        try:
            async with self._open("GET", "/metrics", accept="text/plain") as response:
                if response.status != 200:
                    raise_for(response.status, await response.read(), writes=False)
                sizes = [
                    float(line.rsplit(b" ", 1)[1])
                    async for line in read_lines(response.content)
                    if line.startswith(_SIZE_METRIC)
                ]
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise RecordUnavailable(f"metrics: {type(error).__name__}") from error
        if not sizes:
            raise RecordUnavailable("the Kubernetes API tells no size of its database")
        return int(max(sizes))

    async def read_secret(self, name: str) -> dict[str, bytes]:
        """The decoded data of a Secret; see the port."""
        secret = await self.call_core("GET", "secrets", name)
        return {key: b64decode(value) for key, value in (secret.get("data") or {}).items()}

    async def renew_lease(self, name: str, holder: str) -> None:
        """Creates or renews a Lease; see the port."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/{self._namespace}"
        renewed = CLOCK.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": holder, "renewTime": renewed}
        body = {"spec": spec}
        try:
            await self.call("PATCH", f"{path}/leases/{name}", body=body, content_type=_MERGE)
        except Missing:
            lease = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": name},
                "spec": spec,
            }
            await self.call("POST", f"{path}/leases", body=lease)

    async def report_event(self, obj: Object, *, reason: str, message: str) -> None:
        """A Warning event about `obj`; see the port."""
        now = CLOCK.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        meta = obj["metadata"]
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{meta['name'][:200]}.", "namespace": self._namespace},
            "involvedObject": {
                "apiVersion": obj.get("apiVersion"),
                "kind": obj.get("kind"),
                "name": meta["name"],
                "namespace": self._namespace,
                "uid": meta.get("uid"),
            },
            "type": "Warning",
            "reason": reason,
            "message": message[:1024],
            "source": {"component": "model-gateway"},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            await self.call_core("POST", "events", body=event)
        except (RecordUnavailable, RecordOutcomeUnknown, Missing, Refused, AlreadyExists):
            return

    async def call_core(
        self, method: str, plural: str, name: str = "", *, body: Mapping[str, Any] | None = None
    ) -> Object:
        """One call to a kind of Kubernetes' own, for the other adapters of this package.

        A PATCH is a merge patch. Raises the errors of the port.
        """
        path = f"{self._core}/{plural}" + (f"/{quote(name, safe='')}" if name else "")
        content_type = _MERGE if method == "PATCH" else "application/json"
        return await self.call(method, path, body=body, content_type=content_type)

    async def _patch(self, path: str, obj: Object, patch: Mapping[str, Any]) -> Object:
        version = {"resourceVersion": obj["metadata"]["resourceVersion"]}
        body = {**patch, "metadata": {**patch.get("metadata", {}), **version}}
        return await self.call("PATCH", f"{self._root}/{path}", body=body, content_type=_MERGE)

    async def _read_page(
        self, plural: str, limit: int | None, query: Mapping[str, str], *, metadata_only: bool
    ) -> bytes:
        """The body of a page, of at most `limit` objects and of as many as suit their size."""
        accept = _METADATA_ONLY if metadata_only else "application/json"
        wanted = self._pages.choose(plural, metadata_only=metadata_only, limit=limit)
        while True:
            try:
                return await self._exchange(
                    "GET",
                    f"{self._root}/{plural}",
                    query={**query, "limit": str(wanted)},
                    accept=accept,
                    most=MOST_PAGE_BYTES if wanted > 1 else None,
                )
            except PageTooLong:
                wanted = self._pages.shrink(plural, wanted, metadata_only=metadata_only)
            except RecordUnavailable:
                # it may have been too long to be made in time; raised here, the next reading would
                # learn the same size and fail at the same place
                if wanted <= FIRST_PAGE:
                    raise
                wanted = FIRST_PAGE

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        accept: str = "application/json",
        content_type: str = "application/json",
    ) -> Object:
        """One call to any path of the API server. Raises the errors of the port."""
        raw = await self._exchange(
            method, path, body=body, query=query, accept=accept, content_type=content_type
        )
        answer: Object = orjson.loads(raw)
        return answer

    async def _exchange(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        accept: str = "application/json",
        content_type: str = "application/json",
        most: int | None = None,
    ) -> bytes:
        """One call. A 429 is waited out: the server has done nothing and says when to come back.

        PageTooLong where the answer has more than `most` bytes.
        """
        writes = method != "GET"
        data = None if body is None else orjson.dumps(body)
        deadline = time.monotonic() + self._call_seconds
        while True:
            sent = time.monotonic()
            try:
                async with self._open(
                    method, path, query=query, data=data, accept=accept, content_type=content_type
                ) as response:
                    follow_clock(response, sent)
                    status, raw = response.status, await read_body(response, most)
                    wait = response.headers.get("Retry-After", "1")
            except aiohttp.ClientConnectorError as failure:
                raise RecordUnavailable("the Kubernetes API was not reached") from failure
            except (aiohttp.ClientError, TimeoutError, OSError) as failure:
                kind = RecordOutcomeUnknown if writes else RecordUnavailable
                raise kind(f"{method}: {type(failure).__name__}") from failure
            if status < 300:
                return raw
            pause = float(wait) if wait.isdigit() else 1.0
            if status != 429 or time.monotonic() + pause > deadline:
                try:
                    raise_for(status, raw, writes=writes)
                except RecordFull:
                    self._note_full()
                    raise
            await asyncio.sleep(pause)

    def _open(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        data: bytes | None = None,
        accept: str = "application/json",
        content_type: str = "application/json",
        timeout: aiohttp.ClientTimeout | None = None,
    ) -> Any:
        if self._session is None:
            raise RuntimeError("KubeRecords is used outside its context")
        headers = {"Accept": accept}
        if data is not None:
            headers["Content-Type"] = content_type
        token = self._read_token()
        if token:
            headers["Authorization"] = f"Bearer {token}"
        options: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
        url = f"{self._connection.server}{path}"
        return self._session.request(
            method, url, params=query, data=data, headers=headers, allow_redirects=False, **options
        )

    def _read_token(self) -> str | None:
        read_at, token = self._token
        if time.monotonic() - read_at >= TOKEN_LIFE_SECONDS:
            token = self._connection.read_token()
            self._token = (time.monotonic(), token)
        return token
