"""Single sign-on at the provider that the deployment names."""

from starlette.routing import BaseRoute

from gateway_apiserver.endpoints import Call, CallRoute
from gateway_apiserver.surfaces.oauth.forms import parse_pairs, to_fields
from gateway_apiserver.surfaces.pages.html import (
    SESSION_COOKIE,
    SSO_COOKIE,
    Pages,
    clear_cookie,
    read_cookie,
    redirect,
    set_cookie,
)
from gateway_apiserver.surfaces.pages.sign_in import choose_next
from gateway_core.accounts.sign_in import SignIn
from gateway_core.accounts.sso import PENDING_SECONDS, SignOn
from gateway_core.accounts.throttle import Throttle
from gateway_core.api.errors import Forbidden
from gateway_web.http1.connections import name_client
from gateway_web.responses import Response

SSO_PATH = "/sign-in/sso"
CALLBACK_PATH = "/sign-in/sso/callback"


class SsoRoutes:
    """To the provider and back."""

    def __init__(self, pages: Pages, sign_in: SignIn, sign_on: SignOn, throttle: Throttle) -> None:
        self._pages = pages
        self._sign_in = sign_in
        self._sign_on = sign_on
        self._throttle = throttle

    def add_to(self, routes: list[BaseRoute]) -> None:
        """Add the routes."""
        guard = self._pages.guard
        routes.append(CallRoute("GET", SSO_PATH, guard(self.begin), "pages_sso"))
        routes.append(CallRoute("GET", CALLBACK_PATH, guard(self.finish), "pages_sso"))

    async def begin(self, call: Call) -> Response:
        """Send the person to the provider."""
        await self._throttle.count("sign-in-address", name_client(call.scope))
        after = choose_next(to_fields(parse_pairs(call.query)).get("next", ""))
        location, cookie = await self._sign_on.begin(after)
        return redirect(location, set_cookie(SSO_COOKIE, cookie, PENDING_SECONDS), status=302)

    async def finish(self, call: Call) -> Response:
        """Begin a session for who comes back."""
        await self._throttle.count("sign-in-address", name_client(call.scope))
        given = to_fields(parse_pairs(call.query))
        if "code" not in given:
            raise Forbidden("The sign-in at the provider was not completed.")
        token, after = await self._sign_on.finish(
            given.get("state", ""),
            given["code"],
            given.get("iss"),
            read_cookie(call, SSO_COOKIE),
        )
        before = read_cookie(call, SESSION_COOKIE)
        if before:
            await self._sign_in.sign_out(before)
        return redirect(after, set_cookie(SESSION_COOKIE, token), clear_cookie(SSO_COOKIE))
