"""The answers to paths and methods that are not served, which name what was meant.

Most paths come from a base URL without its version, or with it twice, or are those of other
services (`unserved`).
"""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.routing import iter_route_contexts
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from gateway_apiserver.routers.tasks import LIST_PATH
from gateway_apiserver.surfaces.tasks import READ_PATH
from gateway_apiserver.unserved import describe_unserved, suggest_method
from gateway_core.api.errors import GatewayError, MethodNotAllowed, NotFound
from gateway_core.api.model import RESERVED_SERVICES
from gateway_core.providers.catalog import Catalog
from gateway_core.providers.suggestions import SCHEDULES_PATH, allow_all, suggest_operations
from gateway_web.application import add_error_handler, translate_error
from gateway_web.context import get_context
from gateway_web.errors import choose_dialect, render_error
from gateway_web.responses import send_response

PREFIXES = (("v1",), ("api", "v1"), ("v1beta",))
"""Beginnings of the paths that clients call, as segments."""
_IN_BASE = frozenset({"api", "openai", "rest", "v1", "v1alpha", "v1beta", "v2"})
"""First segments that base URLs of such services have."""
_SHOWN = re.compile(r"[A-Za-z0-9._:/{}@~-]{1,200}", re.A)
"""Paths that an error repeats."""


class MissingPaths:
    """Endpoint of the paths of `app` that no route serves."""

    def __init__(self, app: FastAPI, catalog: Callable[[], Catalog]) -> None:
        self._app = app
        self._catalog = catalog

    def install(self) -> None:
        """Have the application answer such requests."""
        self._app.router.default = self
        add_error_handler(self._app, HTTPException, self._explain)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path: str = scope["path"]
        if scope["type"] != "http" or not _SHOWN.fullmatch(path):
            raise HTTPException(404)
        given, rest = _split(path)
        likely = (prefix for prefix in PREFIXES if rest and self._may_begin(prefix, rest[0]))
        for prefix in sorted(likely, key=lambda prefix: given[-len(prefix) :] != prefix):
            meant = "/" + "/".join((*prefix, *rest))
            if meant != path and self._serves(scope, meant):
                text = f"{_compare(given, prefix)}the path is {meant}."
                await _refuse(scope, text, meant)
                return
        method = scope["method"]
        if method == "POST" and given == ("v1",):
            for place in range(1, len(rest)):
                meant = "/v1/" + "/".join(rest[place:])
                if meant in self._paths:
                    await _refuse(scope, f"the base URL ends in /v1, the path is {meant}.", meant)
                    return
        if given == ("api", "v1") and rest[:1] == ("tasks",):
            raise NotFound(f"Not found: a task is at {READ_PATH}; {LIST_PATH} lists them.")
        if given == ("api", "v1") and len(rest) == 2 and rest[0] not in RESERVED_SERVICES:
            hint = suggest_operations(self._catalog(), *rest, allow_all)
            if hint:
                raise NotFound(
                    f"Not found: no model serves {'/'.join(rest)}.{hint}"
                    f" GET {SCHEDULES_PATH} lists the models."
                )
        unserved = describe_unserved(method, path, given, rest, self._paths)
        if unserved is not None:
            await _refuse(scope, unserved, path)
            return
        raise HTTPException(404)

    def _explain(self, error: Exception, request: Request) -> GatewayError:
        found = translate_error(error, request)
        path = request.scope["path"]
        if isinstance(found, MethodNotAllowed) and _SHOWN.fullmatch(path):
            templates = (
                route.path
                for route in self._routes
                if route.matches(request.scope)[0] is not Match.NONE
            )
            may_cancel = partial(self._may_cancel, request.scope)
            hint = suggest_method(request.method, path, templates, may_cancel)
            return MethodNotAllowed(found.allow, hint)
        return found

    @cached_property
    def _routes(self) -> list[Any]:
        return [*iter_route_contexts(self._app.routes)]

    @cached_property
    def _heads(self) -> frozenset[tuple[str, ...]]:
        """The prefixes of the routes, each with the segment after it."""
        paths = (route.path.strip("/").split("/") for route in self._routes if route.path)
        return frozenset((*path[:size],) for path in paths for size in (2, 3))

    @cached_property
    def _paths(self) -> Sequence[str]:
        """The paths below `/v1` that are not part of another one."""
        found: list[str] = []
        for path in sorted({route.path for route in self._routes if route.path}):
            is_part = found and path.startswith(f"{found[-1]}/")
            if path.startswith("/v1/") and "{" not in path and not is_part:
                found.append(path)
        return found

    def _may_begin(self, prefix: tuple[str, ...], segment: str) -> bool:
        """Return False where no route begins so: most wrong paths are those of scanners."""
        is_service = prefix == ("api", "v1") and any(
            segment == service for service, _ in self._catalog().models
        )
        return is_service or (*prefix, segment) in self._heads

    def _may_cancel(self, scope: Scope, path: str) -> bool:
        """Return whether the path cancels something."""
        meant = {**scope, "method": "POST", "path": path}
        return any(
            route.matches(meant)[0] is Match.FULL
            for route in self._routes
            if route.path and route.path.endswith("/cancel")
        )

    def _serves(self, scope: Scope, path: str) -> bool:
        meant = {**scope, "path": path}
        for route in self._routes:
            match, child = route.matches(meant)
            # a path of tasks is served while some model has its action
            if match is not Match.NONE and child.get("operation", route) is not None:
                return True
        return False


async def _refuse(scope: Scope, text: str, meant: str) -> None:
    """Answer 404 in the dialect of the path that was meant."""
    error = render_error(NotFound(f"Not found: {text}"), choose_dialect({**scope, "path": meant}))
    await send_response(get_context(scope).sender, error)


def _split(path: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the segments that a base URL has, and those after them."""
    segments = [segment for segment in path.split("/") if segment]
    count = 0
    while count < len(segments) and segments[count].lower() in _IN_BASE:
        count += 1
    return tuple(segments[:count]), tuple(segments[count:])


def _compare(given: Sequence[str], wanted: Sequence[str]) -> str:
    """Return what is wrong with the beginning of a path, where that is plain."""
    missing = [segment for segment in wanted if segment not in given]
    if missing and len(given) + len(missing) == len(wanted):
        return f"{_join(missing)} is missing, "
    if (*given,) == (*wanted, *wanted):
        return f"{_join(wanted)} is there twice, "
    return ""


def _join(segments: Iterable[str]) -> str:
    return "".join(f"/{segment}" for segment in segments)
