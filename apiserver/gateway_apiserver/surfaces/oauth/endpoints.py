"""What clients call without a user: discovery, registration, tokens, revocation (contract §10)."""

from collections.abc import Mapping
from functools import partial

import orjson
from starlette.routing import BaseRoute

from gateway_apiserver.endpoints import Call, CallRoute, Handler
from gateway_apiserver.surfaces.oauth.forms import find_header, read_json, read_pairs, to_fields
from gateway_core.accounts.throttle import Allowance, Throttle
from gateway_core.admission.intake import Intake
from gateway_core.api.errors import NotFound, OAuthError
from gateway_core.oauth.authorization import Authorizations
from gateway_core.oauth.clients import ClientDirectory
from gateway_core.oauth.discovery import (
    CACHE_CONTROL,
    ENDPOINT_PATHS,
    SERVER_PATHS,
    describe_resources,
    describe_server,
)
from gateway_core.oauth.grants import Grants
from gateway_core.oauth.records import ClientRecord
from gateway_core.oauth.registration import MOST_BYTES, Registrar
from gateway_core.oauth.rotation import TokenResponse
from gateway_web.http1.connections import name_client, name_network
from gateway_web.responses import JSON, NO_STORE, Response, to_json

OAUTH_ALLOWANCES: Mapping[str, Allowance] = {
    "token": Allowance(600, 60, optional=True),
    "authorize": Allowance(300, 60),
    "document": Allowance(20, 60),
    "refresh": Allowance(30, 60, optional=True),
    "code": Allowance(30, 60),
    "settings": Allowance(120, 60),
}
"""Of one address: calls of clients, which may serve many users, and fetches of metadata documents.
Of one grant: refreshes. Of one user: codes, and views of the settings."""
_PRAGMA = (b"pragma", b"no-cache")
_ALLOWED_HEADERS = b"Authorization, Content-Type, MCP-Protocol-Version"


class DiscoveryRoutes:
    """The documents, the same on every replica."""

    def __init__(self, base_url: str, mcp_url: str, *, registration: bool, documents: bool) -> None:
        described = describe_server(base_url, registration=registration, documents=documents)
        resources = describe_resources(base_url, mcp_url, ENDPOINT_PATHS[:1])
        self._documents = {SERVER_PATHS[0]: described, **dict(resources)}

    def add_to(self, routes: list[BaseRoute]) -> None:
        """Add the routes."""
        for path, document in self._documents.items():
            show = partial(_show_document, _cacheable(orjson.dumps(document)))
            _add_open(routes, "GET", path, show, "oauth_discovery")


class OAuthRoutes:
    """Registration, token and revocation endpoints."""

    def __init__(
        self,
        registrar: Registrar | None,
        clients: ClientDirectory,
        grants: Grants,
        authorizations: Authorizations,
        throttle: Throttle,
        intake: Intake,
    ) -> None:
        """`registrar` is None where clients may not register themselves."""
        self._registrar = registrar
        self._clients = clients
        self._grants = grants
        self._authorizations = authorizations
        self._throttle = throttle
        self._intake = intake

    def add_to(self, routes: list[BaseRoute]) -> None:
        """Add the routes."""
        _add_open(routes, "POST", "/oauth/register", self.register, "oauth_register")
        _add_open(routes, "POST", "/oauth/token", self.issue, "oauth_token")
        _add_open(routes, "POST", "/oauth/revoke", self.revoke, "oauth_revoke")

    async def register(self, call: Call) -> Response:
        """Register a client (§10.5)."""
        if self._registrar is None:
            raise NotFound("Not found.")
        self._intake.check()
        address = name_client(call.scope)
        await self._throttle.count("register", address)
        await self._throttle.count("register-day", address)
        network = name_network(call.scope)
        if network is not None:
            await self._throttle.count("register-network", network)
        body = await read_json(call, MOST_BYTES)
        return to_json(await self._registrar.register(body), 201)

    async def issue(self, call: Call) -> Response:
        """Return tokens for a code or a refresh token (§10.7)."""
        form, resources = await self._read(call)
        grant_type = form.get("grant_type")
        if grant_type == "authorization_code":
            # before anything of the request is judged, as elsewhere
            self._intake.check()
        client = await self._authenticate(call, form)
        if grant_type is None:
            raise OAuthError("invalid_request", "The parameter grant_type is missing.")
        self._authorizations.check_resources(resources)
        if grant_type == "authorization_code":
            return _show(await self._grants.exchange(client, form))
        if grant_type == "refresh_token":
            grant = self._grants.name_grant(form.get("refresh_token", ""))
            if grant is not None:
                await self._throttle.count("refresh", grant)
            return _show(await self._grants.refresh(client, form))
        raise OAuthError(
            "unsupported_grant_type", "grant_type must be authorization_code or refresh_token."
        )

    async def revoke(self, call: Call) -> Response:
        """Revoke a token. An unknown token gets 200 too (RFC 7009)."""
        form, resources = await self._read(call)
        client = await self._authenticate(call, form)
        self._authorizations.check_resources(resources)
        token = form.get("token")
        if token is None:
            raise OAuthError("invalid_request", "The parameter token is missing.")
        await self._grants.revoke_token(client, token)
        return Response(200, b"", (NO_STORE, _PRAGMA))

    async def _read(self, call: Call) -> tuple[dict[str, str], list[str]]:
        """Return the fields of the form, and all resources that it names."""
        await self._throttle.count("token", name_client(call.scope))
        pairs = await read_pairs(call)
        return to_fields(pairs), [value for name, value in pairs if name == "resource" and value]

    async def _authenticate(self, call: Call, form: Mapping[str, str]) -> ClientRecord:
        return await self._clients.authenticate(find_header(call, b"authorization"), form)


def _show(tokens: TokenResponse) -> Response:
    body = {
        "access_token": tokens.access_token,
        "token_type": "Bearer",
        "expires_in": tokens.expires_in,
        "refresh_token": tokens.refresh_token,
        "scope": " ".join(tokens.scopes),
    }
    return to_json(body, headers=(_PRAGMA,))


async def _show_document(document: Response, _: Call) -> Response:
    return document


def _cacheable(body: bytes) -> Response:
    return Response(200, body, (JSON, (b"cache-control", CACHE_CONTROL.encode())))


def _add_open(
    routes: list[BaseRoute], method: str, path: str, handler: Handler, label: str
) -> None:
    """Add a route that pages of every origin may call (§0.11)."""
    routes.append(CallRoute(method, path, handler, label))
    methods = "GET, HEAD, OPTIONS" if method == "GET" else f"{method}, OPTIONS"
    allow = partial(_allow, methods.encode())
    routes.append(CallRoute("OPTIONS", path, allow, label))


async def _allow(methods: bytes, _: Call) -> Response:
    headers = (
        (b"access-control-allow-methods", methods),
        (b"access-control-allow-headers", _ALLOWED_HEADERS),
        (b"access-control-max-age", b"86400"),
    )
    return Response(204, b"", headers)
