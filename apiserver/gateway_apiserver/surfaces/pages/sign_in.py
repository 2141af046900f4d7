"""Sign-in and sign-out, and who is signed in (contract §10.6)."""

import hmac
import re
import secrets
from collections.abc import Mapping
from urllib.parse import quote, urlencode

from starlette.routing import BaseRoute

from gateway_apiserver.endpoints import Call, CallRoute
from gateway_apiserver.surfaces.oauth.forms import parse_pairs, read_form
from gateway_apiserver.surfaces.pages.html import (
    BROWSER_COOKIE,
    FORM_COOKIE,
    SESSION_COOKIE,
    FormExpired,
    Pages,
    clear_cookie,
    read_cookie,
    redirect,
    set_cookie,
)
from gateway_core.accounts.sessions import sign_form
from gateway_core.accounts.sign_in import Entry, SignedIn, SignIn, SignInRefused
from gateway_web.http1.connections import name_client
from gateway_web.responses import Response

START, HOME = "/", "/settings"
BROWSER_SECONDS = 400 * 24 * 3600
"""How long a browser is known after a sign-in: as long as browsers keep a cookie."""
_NEXT = re.compile(
    r"/|/settings|/console/[a-z0-9-]{1,63}[!-~]{0,2048}|/oauth/authorize\?[!-~]{1,16384}"
)
"""Where a sign-in may lead: nowhere else, so it is no open redirect."""


def check_form(call: Call, form: Mapping[str, str], purpose: str) -> None:
    """Raise FormExpired where the form has no token of this browser for the purpose."""
    secret = read_cookie(call, FORM_COOKIE)
    expected, given = sign_form(secret, purpose), form.get("form_token", "")
    if not secret or not hmac.compare_digest(expected.encode(), given.encode()):
        raise FormExpired


async def begin_session(sign_in: SignIn, call: Call, entry: Entry, place: str) -> Response:
    """End the browser's former session, and go on to `place` with the new one."""
    before = read_cookie(call, SESSION_COOKIE)
    if before:
        await sign_in.sign_out(before)
    return redirect(
        place,
        set_cookie(SESSION_COOKIE, entry.token),
        set_cookie(BROWSER_COOKIE, entry.mark, BROWSER_SECONDS),
        clear_cookie(FORM_COOKIE),
    )


class SignInRoutes:
    """The sign-in page."""

    def __init__(self, pages: Pages, sign_in: SignIn, provider: str = "") -> None:
        """`provider` is what single sign-on is called; empty for none."""
        self._pages = pages
        self._sign_in = sign_in
        self._provider = provider

    def add_to(self, routes: list[BaseRoute]) -> None:
        """Add the routes."""
        guard = self._pages.guard
        routes.append(CallRoute("GET", "/sign-in", guard(self.show), "pages_sign_in"))
        routes.append(CallRoute("POST", "/sign-in", guard(self.take), "pages_sign_in"))
        routes.append(CallRoute("POST", "/sign-out", guard(self.leave), "pages_sign_out"))

    async def find(self, call: Call) -> SignedIn | None:
        """Return the signed-in user; None if the request has no valid session. Unavailable."""
        return await self._sign_in.find(read_cookie(call, SESSION_COOKIE))

    async def show(self, call: Call) -> Response:
        """Return the form."""
        after = choose_next(dict(parse_pairs(call.query)).get("next", ""))
        return self._render(call, after)

    async def take(self, call: Call) -> Response:
        """Sign in, under a new session, and go on."""
        self._pages.check_same_origin(call)
        form = await read_form(call)
        after = choose_next(form.get("next", ""))
        check_form(call, form, f"sign-in {after}")
        email = form.get("email", "")
        try:
            entry = await self._sign_in.sign_in(
                email,
                form.get("password", ""),
                name_client(call.scope),
                read_cookie(call, BROWSER_COOKIE),
            )
        except SignInRefused as refusal:
            return self._render(call, after, email=email, problem=refusal.message, status=403)
        return await begin_session(self._sign_in, call, entry, after)

    async def leave(self, call: Call) -> Response:
        """Sign out."""
        self._pages.check_same_origin(call)
        form = await read_form(call)
        signed_in = await self.find(call)
        if signed_in is not None:
            if not signed_in.session.check_form_token("sign-out", form.get("form_token", "")):
                raise FormExpired
            await self._sign_in.sign_out(signed_in.token)
        return redirect("/sign-in", clear_cookie(SESSION_COOKIE))

    def _render(
        self, call: Call, after: str, *, email: str = "", problem: str = "", status: int = 200
    ) -> Response:
        secret = read_cookie(call, FORM_COOKIE) or secrets.token_urlsafe(32)
        return self._pages.render(
            "sign_in.html",
            status=status,
            leads_to_client=after.startswith("/oauth/authorize?"),
            headers=(set_cookie(FORM_COOKIE, secret),),
            next=after,
            form_token=sign_form(secret, f"sign-in {after}"),
            email=email,
            problem=problem,
            provider=self._provider,
            sso=f"/sign-in/sso?{urlencode({'next': after})}",
        )


def choose_next(wanted: str) -> str:
    """Return the local page to go to after a sign-in."""
    return wanted if _NEXT.fullmatch(wanted) else START


def locate_sign_in(after: str) -> str:
    """Return the sign-in page that leads to the local page `after`."""
    return f"/sign-in?next={quote(after, safe='')}"
