"""The package `kubernetes` for commands: its client with the chosen identity, off the event loop.

What it lacks is here: all of an identity that kubectl knows, and calls that Ctrl-C need not wait
for.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from kubernetes import client, watch
from kubernetes.client import rest
from urllib3 import HTTPHeaderDict, Retry, disable_warnings
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    InsecureRequestWarning,
    MaxRetryError,
    NewConnectionError,
    ProxyError,
    SSLError,
)

from gateway_cli.cluster import FIELD_MANAGER
from gateway_core.api.resource import Object
from gateway_core.failures import describe_failure
from gateway_core.kube.connection import Connection, Credentials, NoCluster
from gateway_core.kube.errors import (
    KubernetesUnavailable,
    WriteOutcomeUnknown,
    raise_for_status,
)
from gateway_core.proxies import split_credentials

MAX_TEXT_BYTES = 16 * 1024 * 1024
_BUSY_ATTEMPTS = 3
_POOL = 16
_UNREACHED = (ConnectTimeoutError, NewConnectionError, ProxyError, SSLError)
"""Failures before the request is sent."""

# as kubectl, which says nothing of --insecure-skip-tls-verify
disable_warnings(InsecureRequestWarning)

Result = TypeVar("Result")


class Api:
    """Calls of the API server behind `connection`, each of at most `seconds`.

    Each runs in a thread of its own, which a cancelled caller leaves behind. Raises the
    KubernetesErrors of `gateway_core.kube`.
    """

    def __init__(self, connection: Connection, seconds: float) -> None:
        configuration: Any = client.Configuration()
        configuration.host = connection.server
        configuration.tls_server_name = connection.tls_server_name
        configuration.verify_ssl = not connection.insecure
        configuration.connection_pool_maxsize = _POOL
        configuration.proxy, configuration.no_proxy = None, None
        if connection.proxy is not None:
            configuration.proxy, configuration.proxy_headers = split_credentials(connection.proxy)
        # the server did nothing where it answers 429, and says when to ask again
        configuration.retries = Retry(
            total=_BUSY_ATTEMPTS,
            connect=0,
            read=0,
            redirect=0,
            other=0,
            status_forcelist=[429],
            allowed_methods=None,
            raise_on_status=False,
        )
        self._seconds = seconds
        self._client = client.ApiClient(configuration)
        self._client.user_agent = FIELD_MANAGER
        self._client.rest_client = _Rest(configuration, connection)
        self.objects = client.CustomObjectsApi(self._client)

    def close(self) -> None:
        """Close idle connections."""
        self._client.rest_client.pool_manager.clear()

    async def run(self, work: Callable[..., Any], *args: Any, **options: Any) -> Object:
        """Return the JSON that answers a method of `objects`."""
        # the package's own reading takes a proxy's page for an empty object
        options |= {"_preload_content": False, "_request_timeout": self._seconds}
        writes = not work.__name__.startswith(("get", "list", "read"))
        return await self._run(lambda: _read(work(*args, **options)), writes=writes)

    async def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        """Return the JSON at any path, also of kinds that the package has no method for."""
        request = (method, path, body, query)
        headers = {"Accept": "application/json", "Content-Type": content_type}
        return await self._run(lambda: _read(self._send(request, headers)), writes=method != "GET")

    async def read_text(self, path: str) -> str:
        """Return the text at a path, e.g. of a pod's proxy: at most 16 MiB."""

        def read() -> bytes:
            with self._send(("GET", path, None, None), {"Accept": "text/plain, */*"}) as response:
                raw: bytes = response.read(MAX_TEXT_BYTES + 1)
                return raw

        raw = await self._run(read, writes=False)
        if len(raw) > MAX_TEXT_BYTES:
            raise KubernetesUnavailable(f"{path} has more than {MAX_TEXT_BYTES} bytes")
        return raw.decode(errors="replace")

    def _send(self, request: tuple[str, str, Any, Any], headers: dict[str, str]) -> Any:
        method, path, body, query = request
        return self._client.call_api(
            path,
            method,
            query_params=list((query or {}).items()),
            header_params=headers,
            body=body,
            _preload_content=False,
            _return_http_data_only=True,
            _request_timeout=self._seconds,
        )

    async def watch(
        self, *place: str, seconds: int, **options: Any
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield events of the custom objects at `place`, until the server ends the stream."""
        watcher: Any = watch.Watch(return_type="object")
        events = watcher.stream(
            self.objects.list_namespaced_custom_object,
            *place,
            timeout_seconds=seconds,
            # the server ends the stream: a connection silent for longer is dead
            _request_timeout=(self._seconds, seconds + 1),
            allow_watch_bookmarks=True,
            **options,
        )
        try:
            while (event := await self._run(lambda: next(events, None), writes=False)) is not None:
                yield event
        finally:
            watcher.stop()

    async def _run(self, work: Callable[[], Result], *, writes: bool) -> Result:
        future: Future[Result] = Future()
        future.set_running_or_notify_cancel()

        def run() -> None:
            try:
                future.set_result(_explain(work, writes=writes))
            except Exception as error:
                future.set_exception(error)

        # not of the loop's pool, which `asyncio.run` waits for after Ctrl-C
        threading.Thread(target=run, daemon=True).start()
        return await asyncio.wrap_future(future)


# the package has no types
class _Rest(rest.RESTClientObject):  # type: ignore[misc]
    """Sends what the package's configuration cannot say.

    Headers of a name that repeats, as those of impersonation, and a client certificate that a
    plugin renews.
    """

    def __init__(self, configuration: client.Configuration, connection: Connection) -> None:
        super().__init__(configuration)
        self._connection = connection
        self._lock = threading.Lock()
        self._credentials = self._renew()

    def request(self, method: str, url: str, *parts: Any, **options: Any) -> Any:
        """Send a request with the credentials and all headers."""
        with self._lock:
            if self._credentials.is_expired:
                self._credentials = self._renew()
            authorization = self._credentials.authorization
        headers = HTTPHeaderDict(options.pop("headers", None) or {})
        for name, value in self._connection.headers:
            headers.add(name, value)
        if authorization is not None:
            headers["Authorization"] = authorization
        return super().request(method, url, *parts, headers=headers, **options)

    def _renew(self) -> Credentials:
        credentials = self._connection.read_credentials()
        # in the key of pooled connections: none outlives a renewed certificate
        self.pool_manager.connection_pool_kw["ssl_context"] = self._connection.build_ssl(
            credentials
        )
        return credentials


def _read(response: Any) -> Object:
    answer: Object = response.json()
    return answer


def _explain(work: Callable[[], Result], *, writes: bool) -> Result:
    """Return the result of `work`; errors of the package become KubernetesErrors."""
    try:
        return work()
    except client.ApiException as error:
        body = error.body or error.reason or ""
        raise_for_status(
            error.status or 0, body.encode() if isinstance(body, str) else body, writes=writes
        )
    except NoCluster as error:
        raise KubernetesUnavailable("the credentials cannot be renewed") from error
    except HTTPError as error:
        failure = error.reason if isinstance(error, MaxRetryError) and error.reason else error
        if isinstance(failure, _UNREACHED):
            raise KubernetesUnavailable("the Kubernetes API was not reached") from failure
        kind = WriteOutcomeUnknown if writes else KubernetesUnavailable
        raise kind(describe_failure(failure)) from failure
