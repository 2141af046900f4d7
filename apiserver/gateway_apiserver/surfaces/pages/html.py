"""Pages: templates, headers that keep them apart from other sites, cookies, errors as pages."""

import hashlib
import re
from collections.abc import Awaitable, Callable
from functools import cache, wraps
from importlib.resources import files
from typing import Any

import jinja2
import structlog
from markupsafe import Markup
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute

from gateway_apiserver.endpoints import Call, CallRoute
from gateway_core.accounts.sign_in import SignedIn
from gateway_core.api.errors import Forbidden, Internal
from gateway_web.context import Header
from gateway_web.errors import list_error_headers, to_gateway_error
from gateway_web.responses import NO_SNIFF, NO_STORE, Response

SESSION_COOKIE = "__Host-session"
FORM_COOKIE = "__Host-form"
BROWSER_COOKIE = "__Host-browser"
SSO_COOKIE = "__Host-sso"
_COOKIE_VALUE = re.compile(r"[A-Za-z0-9_.-]{16,4000}")
_FOLDER = files("gateway_apiserver.surfaces.pages")
_ASSETS: dict[str, tuple[bytes, bytes]] = {}
"""Content and type of the files that pages load, by path."""


def _add_asset(name: str, media_type: bytes) -> str:
    """Return the path of a file of `assets`; it changes with the content."""
    content = _FOLDER.joinpath("assets", name).read_bytes()
    stem, _, suffix = name.rpartition(".")
    path = f"/assets/{stem}-{hashlib.sha256(content).hexdigest()[:12]}.{suffix}"
    _ASSETS[path] = content, media_type
    return path


STYLE_PATH = _add_asset("style.css", b"text/css; charset=utf-8")
SCRIPT_PATHS = [
    _add_asset(name, b"text/javascript; charset=utf-8")
    # HTMX and its extension as in the packages that tools/node pins
    for name in ("htmx.min.js", "sse.min.js", "console.js")
]
LINK_SCRIPT = _add_asset("link.js", b"text/javascript; charset=utf-8")
"""Script of the page on which a link lets a person choose a password."""
_HTML: Header = (b"content-type", b"text/html; charset=utf-8")
_NO_REFERRER: Header = (b"referrer-policy", b"no-referrer")
_HEADERS: tuple[Header, ...] = (
    _HTML,
    NO_STORE,
    (b"x-frame-options", b"DENY"),
    NO_SNIFF,
    _NO_REFERRER,
)

_log = structlog.get_logger(__name__)

PageHandler = Callable[[Call], Awaitable[Response | None]]


class Pages:
    """Renders templates. `origin` is the base URL, from which forms must come."""

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._templates = _compile_templates()

    @property
    def script_urls(self) -> str:
        """The scripts of pages: other paths of the origin may have bytes of tenants."""
        return self.locate(*SCRIPT_PATHS)

    def locate(self, *paths: str) -> str:
        """Return the addresses of these files of the origin, for the policy of a page."""
        return " ".join(self._origin + path for path in paths)

    def add_to(self, routes: list[BaseRoute]) -> None:
        """Add the style sheet and the scripts, the only files that pages load."""

        async def show(call: Call) -> Response:
            content, media_type = _ASSETS[call.scope["path"]]
            headers = (
                (b"content-type", media_type),
                (b"cache-control", b"public, max-age=31536000, immutable"),
                NO_SNIFF,
            )
            return Response(200, content, headers)

        routes += [CallRoute("GET", path, show, "pages_asset") for path in _ASSETS]

    def render(
        self,
        template: str,
        signed_in: SignedIn | None = None,
        *,
        status: int = 200,
        leads_to_client: bool = False,
        sources: str = "",
        headers: tuple[Header, ...] = (),
        **values: Any,
    ) -> Response:
        """Return a page. With `leads_to_client` the response to its form may redirect to a client.

        `sources` are further directives of the policy, for what the page loads beside its style.
        """
        policy = (
            "default-src 'none'; style-src 'self'; img-src 'self' data:; base-uri 'none';"
            " frame-ancestors 'none'"
        )
        # Chromium checks every redirect after a form, and a client may redirect to any scheme
        policy = policy if leads_to_client else f"{policy}; form-action 'self'"
        policy = f"{policy}; {sources}" if sources else policy
        text = self.fill(
            template,
            style=STYLE_PATH,
            scripts=SCRIPT_PATHS,
            signed_in=signed_in,
            sign_out_token=signed_in.session.make_form_token("sign-out") if signed_in else "",
            **values,
        )
        security = (b"content-security-policy", policy.encode())
        return Response(status, text.encode(), (*_HEADERS, security, *headers))

    def fill(self, template: str, **values: Any) -> Markup:
        """Return the text of a template, which is a part of a page."""
        return Markup(self._templates.get_template(template).render(**values))  # noqa: S704

    def guard(self, handler: PageHandler) -> PageHandler:
        """Return the handler, whose errors are shown as pages."""

        @wraps(handler)
        async def serve(call: Call) -> Response | None:
            try:
                return await handler(call)
            except ClientDisconnect:
                raise
            except Exception as error:
                known = to_gateway_error(error, call.context.request_id)
                if isinstance(known, Internal):
                    _log.exception("request failed")
                headers = tuple(list_error_headers(known))
                # a page does not ask for credentials in a header
                status = 400 if known.status == 401 else known.status
                return self.render(
                    "error.html", status=status, headers=headers, message=known.message
                )

        return serve

    def check_same_origin(self, call: Call) -> None:
        """Raise Forbidden where a form was sent by another site.

        Under `Referrer-Policy: no-referrer` browsers send `Origin: null` with own forms too.
        """
        given = dict(call.headers)
        site = given.get(b"sec-fetch-site", b"same-origin")
        origin = given.get(b"origin", b"null").decode("latin-1")
        if site != b"same-origin" or origin not in ("null", self._origin):
            raise FormExpired


class FormExpired(Forbidden):
    """The form is none that this browser was just given."""

    def __init__(self) -> None:
        super().__init__("This form is no longer valid. Go back, reload the page and try again.")


def redirect(location: str, *cookies: Header, status: int = 303) -> Response:
    """Return a redirect that nothing caches."""
    target = (b"location", location.encode("ascii"))
    return Response(status, b"", (NO_STORE, target, _NO_REFERRER, *cookies))


def read_cookie(call: Call, name: str) -> str:
    """Return the value of one of our cookies; empty without one, or where it cannot be ours."""
    for key, value in call.headers:
        if key == b"cookie":
            for part in value.decode("latin-1").split(";"):
                found, _, text = part.strip().partition("=")
                if found == name:
                    # it is also set again: no other character may come into a header
                    return text if _COOKIE_VALUE.fullmatch(text) else ""
    return ""


def set_cookie(name: str, value: str, seconds: int = 0) -> Header:
    """Return the header that sets a cookie for this host alone.

    It lives for so many seconds, without them until the browser ends.
    """
    age = f"; Max-Age={seconds}" if seconds else ""
    return b"set-cookie", f"{name}={value}; Path=/; Secure; HttpOnly; SameSite=Lax{age}".encode()


def clear_cookie(name: str) -> Header:
    """Return the header that removes it."""
    return b"set-cookie", f"{name}=; Path=/; Secure; HttpOnly; SameSite=Lax; Max-Age=0".encode()


@cache
def _compile_templates() -> jinja2.Environment:
    """Return all templates. The first page would wait for 0.1 s if it had to compile its own."""
    folder = _FOLDER.joinpath("templates")
    texts = {
        f"{prefix}{file.name}": file.read_text()
        for prefix in ("", "console/")
        for file in folder.joinpath(prefix).iterdir()
        if file.is_file()
    }
    templates = jinja2.Environment(
        loader=jinja2.DictLoader(texts),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in texts:
        templates.get_template(name)
    return templates
