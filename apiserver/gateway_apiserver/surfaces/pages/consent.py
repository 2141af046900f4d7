"""The authorization endpoint: choice of account and consent (contract §10.6)."""

import hashlib
from collections.abc import Coroutine, Mapping
from typing import Any
from urllib.parse import urlencode

import structlog
from starlette.routing import BaseRoute

from gateway_apiserver.endpoints import Call, CallRoute
from gateway_apiserver.surfaces.oauth.forms import parse_pairs, read_pairs, to_fields
from gateway_apiserver.surfaces.pages.html import FormExpired, Pages, redirect
from gateway_apiserver.surfaces.pages.sign_in import SignInRoutes, locate_sign_in
from gateway_core.accounts.authentication import find_confirmed
from gateway_core.accounts.records import AccountRecord
from gateway_core.accounts.sign_in import SignedIn
from gateway_core.accounts.throttle import Throttle
from gateway_core.api.errors import GatewayError, Internal
from gateway_core.api.oauth import Scope
from gateway_core.kube.read_through import ReadThrough
from gateway_core.oauth.authorization import (
    AuthorizationRefused,
    AuthorizationRequest,
    Authorizations,
    Pairs,
)
from gateway_core.oauth.grants import Grants
from gateway_core.oauth.redirects import is_loopback, is_site, name_host
from gateway_web.http1.connections import name_client
from gateway_web.responses import Response

SCOPE_TEXTS: dict[Scope, str] = {
    "mcp:read": "See the account's balance, its tasks, and the models and prices.",
    "mcp:tasks": "Create tasks. The account pays for them.",
}
_log = structlog.get_logger(__name__)
_OWN_FIELDS = ("account", "decision", "form_token")


class ConsentRoutes:
    """GET shows the choice of account; each POST is one step further."""

    def __init__(
        self,
        pages: Pages,
        sign_in: SignInRoutes,
        authorizations: Authorizations,
        grants: Grants,
        accounts: ReadThrough[AccountRecord],
        throttle: Throttle,
    ) -> None:
        self._pages = pages
        self._sign_in = sign_in
        self._authorizations = authorizations
        self._grants = grants
        self._accounts = accounts
        self._throttle = throttle

    def add_to(self, routes: list[BaseRoute]) -> None:
        """Add the routes."""
        guard = self._pages.guard
        routes.append(CallRoute("GET", "/oauth/authorize", guard(self.begin), "pages_authorize"))
        routes.append(CallRoute("POST", "/oauth/authorize", guard(self.go_on), "pages_authorize"))

    async def begin(self, call: Call) -> Response:
        """Check the request, and show the accounts of who is signed in."""
        try:
            request = await self._read(call, parse_pairs(call.query))
        except AuthorizationRefused as refusal:
            return redirect(refusal.location, status=302)
        return await self._answer(request, self._show_accounts(call, request))

    async def go_on(self, call: Call) -> Response:
        """Take the account, then the decision."""
        self._pages.check_same_origin(call)
        pairs = await read_pairs(call)
        own = to_fields([(name, value) for name, value in pairs if name in _OWN_FIELDS])
        try:
            rest = [(name, value) for name, value in pairs if name not in _OWN_FIELDS]
            request = await self._read(call, rest)
        except AuthorizationRefused as refusal:
            return redirect(refusal.location, status=302)
        return await self._answer(request, self._take_step(call, request, own))

    async def _answer(
        self, request: AuthorizationRequest, step: Coroutine[Any, Any, Response]
    ) -> Response:
        """Return the step's response; an error is sent to the client by a redirect (§10.6)."""
        try:
            return await step
        except FormExpired:
            # another site may have sent the form: the user stays here
            raise
        except Exception as error:
            if not isinstance(error, GatewayError) or isinstance(error, Internal):
                _log.exception("authorization failed")
            return self._refuse(request, "Authorization is not possible now.", "server_error")

    async def _show_accounts(self, call: Call, request: AuthorizationRequest) -> Response:
        signed_in = await self._sign_in.find(call)
        if "none" in request.prompts:
            return self._refuse(request, "The user has to be asked.")
        if signed_in is None:
            return _send_to_sign_in(request)
        accounts = await self._list_accounts(signed_in)
        if not accounts:
            return self._refuse(request, "The user is no member of an account.")
        return self._render("account.html", request, signed_in, accounts=accounts)

    async def _take_step(
        self, call: Call, request: AuthorizationRequest, own: Mapping[str, str]
    ) -> Response:
        signed_in = await self._sign_in.find(call)
        if signed_in is None:
            return _send_to_sign_in(request)
        token = own.get("form_token", "")
        if not signed_in.session.check_form_token(_name_form(request), token):
            raise FormExpired
        decision = own.get("decision")
        if decision == "deny":
            return self._refuse(request, "The user refused.")
        accounts = {account.name: account for account in await self._list_accounts(signed_in)}
        account = accounts.get(own.get("account", ""))
        if account is None:
            return self._refuse(request, "The user chose none of their accounts.")
        if decision == "approve" or self._is_approved(request, signed_in, account):
            await self._throttle.count("code", signed_in.user.name)
            code = await self._grants.issue_code(request, signed_in.user.name, account.name)
            return redirect(self._authorizations.locate_code(request, code), status=302)
        return self._render(
            "consent.html",
            request,
            signed_in,
            account=account,
            scopes=[text for scope, text in SCOPE_TEXTS.items() if scope in request.scopes],
            is_loopback=is_loopback(request.redirect_uri),
            is_site=is_site(request.redirect_uri),
        )

    async def _read(self, call: Call, pairs: Pairs) -> AuthorizationRequest:
        address = name_client(call.scope)
        await self._throttle.count("authorize", address)

        async def before_fetch() -> str:
            await self._throttle.count("document", address)
            return address

        return await self._authorizations.read(pairs, before_fetch)

    def _is_approved(
        self, request: AuthorizationRequest, signed_in: SignedIn, account: AccountRecord
    ) -> bool:
        """Return whether it was approved before, and no other program can pose as the client."""
        if not is_site(request.redirect_uri) or "consent" in request.prompts:
            return False
        return self._grants.has_given(request, signed_in.user.name, account.name)

    async def _list_accounts(self, signed_in: SignedIn) -> list[AccountRecord]:
        accounts = []
        for name, _ in signed_in.user.roles:
            # a new one may not have reached this replica
            account = await find_confirmed(self._accounts, name)
            if account is not None and not account.suspended:
                accounts.append(account)
        return accounts

    def _refuse(
        self, request: AuthorizationRequest, description: str, code: str = "access_denied"
    ) -> Response:
        location = self._authorizations.locate_error(
            request.redirect_uri, request.state, code, description
        )
        return redirect(location, status=302)

    def _render(
        self, template: str, request: AuthorizationRequest, signed_in: SignedIn, **values: Any
    ) -> Response:
        return self._pages.render(
            template,
            signed_in,
            leads_to_client=True,
            client=request.client.name,
            host=name_host(request.redirect_uri),
            pairs=request.pairs,
            form_token=signed_in.session.make_form_token(_name_form(request)),
            **values,
        )


def _send_to_sign_in(request: AuthorizationRequest) -> Response:
    return redirect(locate_sign_in(f"/oauth/authorize?{urlencode(request.pairs)}"))


def _name_form(request: AuthorizationRequest) -> str:
    """Return the name that binds a form's token to the request that the form was made for."""
    return f"authorize {hashlib.sha256(urlencode(request.pairs).encode()).hexdigest()}"
