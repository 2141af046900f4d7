"""The settings page of a signed-in user: authorized apps (contract §10.7), and the password."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Any

from starlette.routing import BaseRoute

from gateway_apiserver.endpoints import Call, CallRoute
from gateway_apiserver.surfaces.oauth.forms import parse_pairs, read_form
from gateway_apiserver.surfaces.pages.consent import SCOPE_TEXTS
from gateway_apiserver.surfaces.pages.html import (
    SESSION_COOKIE,
    FormExpired,
    Pages,
    redirect,
    set_cookie,
)
from gateway_apiserver.surfaces.pages.passwords import check_repeated
from gateway_apiserver.surfaces.pages.sign_in import HOME, SignInRoutes, locate_sign_in
from gateway_core.accounts.key_use import KeyUse
from gateway_core.accounts.password_rules import PasswordRefused
from gateway_core.accounts.records import AccountRecord, UserRecord
from gateway_core.accounts.roles import governs
from gateway_core.accounts.sign_in import SignedIn, SignIn, SignInRefused
from gateway_core.accounts.throttle import Throttle
from gateway_core.api.times import parse_time
from gateway_core.kube.informer import Cache
from gateway_core.oauth.grants import Grants
from gateway_core.oauth.records import GrantRecord
from gateway_web.http1.connections import name_client
from gateway_web.responses import Response

CONNECTIONS = f"{HOME}#oauth-connections"
ON_A_PAGE = 100
"""Grants of other users that one page shows."""
_Group = list[GrantRecord]
"""Grants that are shown as one, the newest first."""
_PAGES = frozenset(map(str, range(1000)))


class SettingsRoutes:
    """Shows the user's grants and those to the accounts they govern, and revokes them."""

    def __init__(
        self,
        pages: Pages,
        sign_in: SignInRoutes,
        service: SignIn,
        grants: Grants,
        accounts: Cache[AccountRecord],
        users: Cache[UserRecord],
        use: KeyUse,
        throttle: Throttle,
    ) -> None:
        self._pages = pages
        self._sign_in = sign_in
        self._service = service
        self._grants = grants
        self._accounts = accounts
        self._users = users
        self._use = use
        self._throttle = throttle

    def add_to(self, routes: list[BaseRoute]) -> None:
        """Add the routes."""
        guard = self._pages.guard
        routes.append(CallRoute("GET", HOME, guard(self.show), "pages_settings"))
        for path, take, label in (
            ("connections/revoke", self.revoke, "pages_revoke"),
            ("password", self.change_password, "pages_password"),
        ):
            routes.append(CallRoute("POST", f"{HOME}/{path}", guard(take), label))
            # where the address of a refused form is opened anew
            routes.append(CallRoute("GET", f"{HOME}/{path}", _lead_back, label))

    async def show(self, call: Call) -> Response:
        """Return the page."""
        signed_in = await self._find_user(call)
        if signed_in is None:
            return redirect(locate_sign_in(HOME))
        query = dict(parse_pairs(call.query))
        page = query.get("page", "")
        number = int(page) if page in _PAGES else 0
        return await self._render(signed_in, number, done=query.get("done") == "password")

    async def _find_user(self, call: Call) -> SignedIn | None:
        """Return the signed-in user; each call is counted."""
        signed_in = await self._sign_in.find(call)
        if signed_in is not None:
            await self._throttle.count("settings", signed_in.user.name)
        return signed_in

    async def _render(
        self,
        signed_in: SignedIn,
        page: int = 0,
        *,
        problem: str = "",
        wrong: str = "",
        done: bool = False,
        status: int = 200,
    ) -> Response:
        user = signed_in.user
        governed = [account for account, role in user.roles if governs(role)]
        own = _group(self._grants.list_of(user.name))
        begin = page * ON_A_PAGE
        others: list[_Group] = []
        for account in governed:
            # accounts behind this page are not read
            if len(others) > begin + ON_A_PAGE:
                break
            found = self._grants.list_in(account)
            others += _group(grant for grant in found if grant.user != user.name)
        return self._pages.render(
            "settings.html",
            signed_in,
            status=status,
            connections=await self._describe(signed_in, own),
            governs=bool(governed),
            others=await self._describe(signed_in, others[begin : begin + ON_A_PAGE]),
            previous=page - 1 if page else None,
            following=page + 1 if begin + ON_A_PAGE < len(others) else None,
            password_token=signed_in.session.make_form_token("password"),
            has_password=user.password_hash is not None,
            problem=problem,
            wrong=wrong,
            done=done,
        )

    async def _describe(self, signed_in: SignedIn, groups: Sequence[_Group]) -> list[Any]:
        names = defaultdict[str, list[str]](list)
        for grant in chain.from_iterable(groups):
            names[grant.account].append(grant.name)
        used: dict[str, float] = {}
        for account, own in names.items():
            used |= await self._use.find(account, own)
        return [
            {
                "name": newest.name,
                "user": self._name_user(newest.user),
                "client": newest.client_name,
                "host": newest.redirect_host,
                "account": self._name_account(newest.account),
                "scopes": [text for scope, text in SCOPE_TEXTS.items() if scope in newest.scopes],
                "since": parse_time(oldest.created_at),
                "last_used": _find_use(group, used),
                "form_token": signed_in.session.make_form_token(f"revoke {newest.name}"),
            }
            for group in groups
            for newest, oldest in [(group[0], group[-1])]
        ]

    async def revoke(self, call: Call) -> Response:
        """Revoke one grant of the user, or one to an account that they govern."""
        self._pages.check_same_origin(call)
        form = await read_form(call)
        signed_in = await self._find_user(call)
        if signed_in is None:
            return redirect(locate_sign_in(HOME))
        name = form.get("grant", "")
        token = form.get("form_token", "")
        if not signed_in.session.check_form_token(f"revoke {name}", token):
            raise FormExpired
        await self._grants.revoke(signed_in.user, name)
        return redirect(CONNECTIONS)

    async def change_password(self, call: Call) -> Response:
        """Set the password that the user chose, for the old one."""
        self._pages.check_same_origin(call)
        form = await read_form(call)
        signed_in = await self._find_user(call)
        if signed_in is None:
            return redirect(locate_sign_in(HOME))
        if not signed_in.session.check_form_token("password", form.get("form_token", "")):
            raise FormExpired
        try:
            check_repeated(form.get("chosen", ""), form.get("repeated", ""))
            token = await self._service.change_password(
                signed_in,
                form.get("password", ""),
                form.get("chosen", ""),
                name_client(call.scope),
            )
        except SignInRefused:
            problem = "The current password is not right."
            return await self._render(signed_in, problem=problem, wrong="password", status=403)
        except PasswordRefused as refusal:
            wrong = refusal.param or "chosen"
            return await self._render(signed_in, problem=refusal.message, wrong=wrong, status=400)
        return redirect(f"{HOME}?done=password#password", set_cookie(SESSION_COOKIE, token))

    def _name_account(self, name: str) -> str:
        record = self._accounts.get(name)
        return name if record is None else record.display_name

    def _name_user(self, name: str) -> str:
        user = self._users.get(name)
        return name if user is None else f"{user.display_name} ({user.email})"


def _group(grants: Iterable[GrantRecord]) -> list[_Group]:
    """Return those of one user, client and account together, as they are revoked."""
    found = defaultdict[tuple[str, str, str], _Group](list)
    for grant in grants:
        found[grant.user, grant.client_id, grant.account].append(grant)
    return list(found.values())


def _find_use(group: _Group, used: Mapping[str, float]) -> datetime | None:
    latest = max(max(used.get(grant.name, 0.0), grant.last_used_at) for grant in group)
    return datetime.fromtimestamp(latest, UTC) if latest else None


async def _lead_back(_: Call) -> Response:
    return redirect(HOME)
