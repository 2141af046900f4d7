"""HTTP calls to the Kubernetes API: session, credentials, retries after 429, streams and pages."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ssl import SSLContext
from typing import Any, Self

import aiohttp
import orjson

from gateway_core.api.ids import PROGRAM
from gateway_core.api.resource import Object
from gateway_core.failures import describe_failure
from gateway_core.kube.clock import follow_clock
from gateway_core.kube.connection import Connection, Credentials, NoCluster
from gateway_core.kube.errors import (
    KubernetesUnavailable,
    NoSpaceLeft,
    WriteOutcomeUnknown,
    raise_for_status,
)
from gateway_core.proxies import split_credentials

CONNECT_SECONDS = 3.0
CALL_SECONDS = 10.0

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"

PAGE = 500
"""Objects in a page of a list, at most."""
FIRST_PAGE = 50
"""Objects in a page while their size is unknown; the largest have 200 KB each."""
PAGE_BYTES = 4_000_000
"""Intended size of a page."""
MAX_PAGE_BYTES = 2 * PAGE_BYTES
"""Largest page of several objects that is read; a single object is bounded by etcd."""
_SHRINK = 4


class Transport:
    """An asynchronous context manager; one for each event loop.

    Calls share `pool` connections. Streams have their own, without a bound: a watch holds its
    connection, and the informers of a process bound their number. A call, including its retries
    after 429, takes at most `call_seconds`. `note_full` is called for each write that is rejected
    for lack of space.
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
        self._headers = [("User-Agent", PROGRAM), *connection.headers]
        self._proxy: dict[str, Any] = {}
        if connection.proxy is not None:
            address, proxy_headers = split_credentials(connection.proxy)
            self._proxy = {"proxy": address, "proxy_headers": proxy_headers}
            if not connection.server.startswith("https"):
                # without a tunnel the proxy reads the request's own headers
                self._headers += proxy_headers.items()
        self._credentials = Credentials()
        self._tls: SSLContext | None = None
        self._renewal = asyncio.Lock()
        self._calls: aiohttp.ClientSession | None = None
        self._streams: aiohttp.ClientSession | None = None
        self._pages: defaultdict[tuple[str, str], PageSize] = defaultdict(PageSize)

    async def __aenter__(self) -> Self:
        # loads the trusted certificates: some 30 ms of CPU
        self._credentials, self._tls = await asyncio.to_thread(self._read_credentials)
        self._calls = self._open_session(self._pool)
        self._streams = self._open_session(0)
        return self

    def _open_session(self, connections: int) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=connections, keepalive_timeout=60),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=self._call_seconds, sock_connect=CONNECT_SECONDS),
        )

    async def __aexit__(self, *_: object) -> None:
        for session in (self._calls, self._streams):
            if session is not None:
                await session.close()

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        accept: str = JSON,
    ) -> Object:
        """Return the answer to a call of any path of the API server. A PATCH is a merge patch."""
        raw = await self._exchange(method, path, body=body, query=query, accept=accept)
        answer: Object = orjson.loads(raw)
        return answer

    async def _exchange(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        accept: str = JSON,
        most: int | None = None,
    ) -> bytes:
        """Return the body of an answer. Raises PageTooLong where it has more than `most` bytes."""
        writes = method != "GET"
        headers = {"Accept": accept}
        if body is not None:
            headers["Content-Type"] = MERGE_PATCH if method == "PATCH" else JSON
        data = None if body is None else orjson.dumps(body)
        deadline = time.monotonic() + self._call_seconds
        while True:
            sent = time.monotonic()
            try:
                async with self._request(
                    self._calls, method, path, params=query, data=data, headers=headers
                ) as response:
                    follow_clock(response, sent)
                    status, raw = response.status, await _read_body(response, most)
                    wait = response.headers.get("Retry-After", "1")
            except (aiohttp.ClientConnectorError, aiohttp.ClientHttpProxyError) as failure:
                raise KubernetesUnavailable("the Kubernetes API was not reached") from failure
            except (aiohttp.ClientError, TimeoutError, OSError) as failure:
                kind = WriteOutcomeUnknown if writes else KubernetesUnavailable
                raise kind(f"{method}: {describe_failure(failure)}") from failure
            if status < 300:
                return raw
            # 429: priority and fairness queued the call in vain, and the server did nothing
            pause = float(wait) if wait.isdigit() else 1.0
            if status != 429 or time.monotonic() + pause > deadline:
                try:
                    raise_for_status(status, raw, writes=writes)
                except NoSpaceLeft:
                    self._note_full()
                    raise
            await asyncio.sleep(pause)

    async def _call_page(
        self, path: str, query: Mapping[str, str], accept: str, size: "PageSize", limit: int | None
    ) -> Object:
        """Return a page of a list, with as many objects as their `size` suggests."""
        wanted = size.objects if limit is None else min(limit, size.objects)
        while True:
            try:
                raw = await self._exchange(
                    "GET",
                    path,
                    query={**query, "limit": str(wanted)},
                    accept=accept,
                    most=MAX_PAGE_BYTES if wanted > 1 else None,
                )
            except PageTooLong:
                wanted = size.objects = max(1, wanted // _SHRINK)
            except KubernetesUnavailable:
                # the page may have been too long to be sent in time; raised here, the next list
                # would ask for the same page and fail again
                if wanted <= FIRST_PAGE:
                    raise
                wanted = FIRST_PAGE
            else:
                page: Object = orjson.loads(raw)
                size.note(len(page["items"] or ()), len(raw))
                return page

    @asynccontextmanager
    async def _stream(
        self, path: str, *, what: str, accept: str = JSON, **options: Any
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Yield the lines of an answer to a GET."""
        sent = time.monotonic()
        try:
            async with self._request(
                self._streams, "GET", path, headers={"Accept": accept}, **options
            ) as response:
                follow_clock(response, sent)
                if response.status != 200:
                    raise_for_status(response.status, await response.read(), writes=False)
                yield _read_lines(response.content)
        except (aiohttp.ClientError, TimeoutError, OSError, orjson.JSONDecodeError) as error:
            raise KubernetesUnavailable(f"{what}: {describe_failure(error)}") from error

    @asynccontextmanager
    async def _request(
        self,
        session: aiohttp.ClientSession | None,
        method: str,
        path: str,
        *,
        headers: dict[str, str],
        **options: Any,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Return the response; after a 401 with renewed credentials that of a second call."""
        if session is None:
            raise RuntimeError("the Kubernetes client is used outside its context")
        url = f"{self._connection.server}{path}"
        is_renewed = False
        while True:
            if self._credentials.is_expired:
                await self._renew(self._credentials)
            credentials = self._credentials
            if credentials.authorization is not None:
                headers = {**headers, "Authorization": credentials.authorization}
            async with session.request(
                method,
                url,
                headers=headers,
                allow_redirects=False,
                # in the key of pooled connections: none outlives a renewed certificate
                ssl=self._tls or True,
                **self._proxy,
                **options,
            ) as response:
                if response.status != 401 or is_renewed:
                    yield response
                    return
                is_renewed = True
                await self._renew(credentials)
                if self._credentials == credentials:
                    yield response
                    return

    async def _renew(self, used: Credentials) -> None:
        """Read the credentials anew, unless another call has done so since `used` was read.

        Raises:
            KubernetesUnavailable: they cannot be read; nothing was sent.
        """
        async with self._renewal:
            if self._credentials is not used:
                return
            try:
                self._credentials, self._tls = await asyncio.to_thread(self._read_credentials)
            except (NoCluster, OSError, ValueError) as error:
                raise KubernetesUnavailable("the credentials cannot be renewed") from error

    def _read_credentials(self) -> tuple[Credentials, SSLContext | None]:
        """Return the credentials, and the TLS context with their certificate."""
        credentials = self._connection.read_credentials()
        is_same = credentials.certificate_pem == self._credentials.certificate_pem
        if self._tls is not None and is_same:
            return credentials, self._tls
        return credentials, self._connection.build_ssl(credentials)


async def _read_body(response: aiohttp.ClientResponse, most: int | None) -> bytes:
    if most is None:
        return await response.read()
    chunks, size = list[bytes](), 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > most:
            # closed, else aiohttp reads the rest before it reuses the connection
            response.close()
            raise PageTooLong
        chunks.append(chunk)
    return b"".join(chunks)


async def _read_lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    # the reader's own readline() fails on lines over 128 KiB; an object may have 1.5 MB
    rest = b""
    async for chunk in content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line:
                yield line


class PageTooLong(Exception):
    """A page has more bytes than may be read."""


@dataclass(slots=True)
class PageSize:
    """Objects to ask for in the next page of one kind, learned from the sizes of pages before."""

    objects: int = FIRST_PAGE

    def note(self, objects: int, size: int) -> None:
        """Learn from a page of `objects` in `size` bytes."""
        if objects:
            self.objects = max(1, min(PAGE, PAGE_BYTES * objects // size))
