"""The health port: `/healthz` (alive), `/readyz` (takes requests) and `/metrics`.

Served beside the public port by `server`, in both processes. It has no authentication, request ids
or access log: only the kubelet and Prometheus reach it. Its connections do not count against the
public port's bounds, so probes are answered while a flood fills those.
"""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.types import Receive, Scope, Send

from gateway_apiserver.context import Header

_TEXT: Header = (b"content-type", b"text/plain; charset=utf-8")
_EXPOSITION: Header = (b"content-type", CONTENT_TYPE_LATEST.encode())


class HealthApp:
    """A plain ASGI application; without a `registry` there is no `/metrics`."""

    def __init__(self, is_ready: Callable[[], bool], registry: CollectorRegistry | None) -> None:
        self._is_ready = is_ready
        self._registry = registry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request: 200, 503 where the process is not ready, else 404 or 405."""
        status, header, body = self._answer(scope["path"])
        if scope["method"] not in ("GET", "HEAD"):
            status, header, body = 405, _TEXT, b"only GET and HEAD\n"
        headers = [header, (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        shown = b"" if scope["method"] == "HEAD" else body
        await send({"type": "http.response.body", "body": shown})

    def _answer(self, path: str) -> tuple[int, Header, bytes]:
        if path == "/healthz":
            return 200, _TEXT, b"ok\n"
        if path == "/readyz":
            if self._is_ready():
                return 200, _TEXT, b"ok\n"
            return 503, _TEXT, b"starting or leaving\n"
        if path == "/metrics" and self._registry is not None:
            return 200, _EXPOSITION, generate_latest(self._registry)
        return 404, _TEXT, b"not found\n"
