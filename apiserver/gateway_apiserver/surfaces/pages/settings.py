"""The settings page of a signed-in user: authorized apps (contract §10.7)."""

from datetime import UTC, datetime

from gateway_apiserver.routing import Call, RouteTable
from gateway_apiserver.surfaces.oauth.forms import read_form
from gateway_apiserver.surfaces.pages.consent import SCOPE_TEXTS
from gateway_apiserver.surfaces.pages.html import Pages, expired_form, redirect
from gateway_apiserver.surfaces.pages.sign_in import HOME, SignInRoutes, locate_sign_in
from gateway_core.accounts.key_use import KeyUse
from gateway_core.accounts.records import AccountRecord
from gateway_core.api.times import parse_time
from gateway_core.kube.informer import Cache
from gateway_core.oauth.grants import Grants
from gateway_core.oauth.records import GrantRecord
from gateway_web.responses import Response

CONNECTIONS = f"{HOME}#oauth-connections"


class SettingsRoutes:
    """Shows the user's grants and revokes them."""

    def __init__(
        self,
        pages: Pages,
        sign_in: SignInRoutes,
        grants: Grants,
        accounts: Cache[AccountRecord],
        use: KeyUse,
    ) -> None:
        self._pages = pages
        self._sign_in = sign_in
        self._grants = grants
        self._accounts = accounts
        self._use = use

    def add_to(self, table: RouteTable) -> None:
        """Add the routes."""
        guard = self._pages.guard
        table.add("GET", HOME, guard(self.show), "pages_settings")
        table.add("POST", f"{HOME}/connections/revoke", guard(self.revoke), "pages_revoke")

    async def show(self, call: Call) -> Response:
        """The page."""
        signed_in = await self._sign_in.find(call)
        if signed_in is None:
            return redirect(locate_sign_in(HOME))
        grants = self._grants.list_of(signed_in.user.name)
        connections = [
            {
                "name": grant.name,
                "client": grant.client_name,
                "host": grant.redirect_host,
                "account": self._name_account(grant.account),
                "scopes": [text for scope, text in SCOPE_TEXTS.items() if scope in grant.scopes],
                "since": parse_time(grant.created_at),
                "last_used": await self._find_use(grant),
                "form_token": signed_in.session.make_form_token(f"revoke {grant.name}"),
            }
            for grant in grants
        ]
        return self._pages.render("settings.html", signed_in, connections=connections)

    async def revoke(self, call: Call) -> Response:
        """Revoke one grant of the user."""
        self._pages.check_same_origin(call)
        form = await read_form(call)
        signed_in = await self._sign_in.find(call)
        if signed_in is None:
            return redirect(locate_sign_in(HOME))
        name = form.get("grant", "")
        token = form.get("form_token", "")
        if not signed_in.session.check_form_token(f"revoke {name}", token):
            raise expired_form()
        await self._grants.revoke(signed_in.user.name, name)
        return redirect(CONNECTIONS)

    async def _find_use(self, grant: GrantRecord) -> datetime | None:
        used = await self._use.find(grant.account, [grant.name])
        latest = max(used.get(grant.name, 0.0), grant.last_used_at)
        return datetime.fromtimestamp(latest, UTC) if latest else None

    def _name_account(self, name: str) -> str:
        record = self._accounts.get(name)
        return name if record is None else record.display_name
