"""Cross-origin requests (CORS) from the pages of listed origins (contract §0.11)."""

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway_web.context import Header, get_context
from gateway_web.responses import send_empty

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_PREFLIGHT_SECONDS = 600


class CrossOriginMiddleware(CORSMiddleware):
    """Answers preflights, and lets the pages of `origins` read what is below the paths `prefixes`.

    Pages send their key in a header of their own and no cookie, so credentials in the sense of CORS
    are not allowed. A request of another origin is served as one without CORS.

    Starlette adds its headers in a wrapped `send`; here the request's context has them, as routes
    of bytes and streams send past all wrappers.
    """

    def __init__(self, app: ASGIApp, origins: Sequence[str], prefixes: tuple[str, ...]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=_METHODS,
            # those that a page asks for: SDKs send many of their own
            allow_headers=["*"],
            expose_headers=["*"],
            max_age=_PREFLIGHT_SECONDS,
        )
        self._prefixes = prefixes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or not scope["path"].startswith(self._prefixes):
            await self.app(scope, receive, send)
            return
        context, headers = get_context(scope), Headers(scope=scope)
        context.add_vary(b"Origin")
        origin = headers.get("origin")
        if origin is not None and self.is_allowed_origin(origin):
            if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
                preflight = self.preflight_response(headers)
                if preflight.status_code == 200:
                    context.headers += _keep(preflight.raw_headers)
                    await send_empty(context.sender, 204, ())
                    return
            allowed = (b"access-control-allow-origin", origin.encode("latin-1"))
            context.headers += [allowed, *_keep(Headers(self.simple_headers).raw)]
        await self.app(scope, receive, send)


def _keep(headers: Sequence[Header]) -> list[Header]:
    """Return the headers of CORS alone, not those of Starlette's own body."""
    return [header for header in headers if header[0].startswith(b"access-control-")]
