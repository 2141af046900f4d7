"""The page that a link leads to, on which a person chooses a password."""

import secrets

from starlette.routing import BaseRoute

from gateway_apiserver.endpoints import Call, CallRoute
from gateway_apiserver.surfaces.oauth.forms import read_form
from gateway_apiserver.surfaces.pages.html import (
    FORM_COOKIE,
    LINK_SCRIPT,
    Pages,
    read_cookie,
    set_cookie,
)
from gateway_apiserver.surfaces.pages.sign_in import START, begin_session, check_form
from gateway_core.accounts.password_links import LINK_PATH, parse_link
from gateway_core.accounts.password_rules import PasswordRefused
from gateway_core.accounts.sessions import sign_form
from gateway_core.accounts.sign_in import LinkRefused, SignIn
from gateway_web.http1.connections import name_client
from gateway_web.responses import Response

_PURPOSE = "choose a password"


class PasswordRoutes:
    """Shows the form, whose link a script takes from the address, and takes it."""

    def __init__(self, pages: Pages, sign_in: SignIn) -> None:
        self._pages = pages
        self._sign_in = sign_in

    def add_to(self, routes: list[BaseRoute]) -> None:
        """Add the routes."""
        guard = self._pages.guard
        routes.append(CallRoute("GET", LINK_PATH, guard(self.show), "pages_choose_password"))
        routes.append(CallRoute("POST", LINK_PATH, guard(self.take), "pages_choose_password"))

    async def show(self, call: Call) -> Response:
        """Return the form; programs that read mails open links too, so nothing is used up."""
        return self._render(call)

    async def take(self, call: Call) -> Response:
        """Set the password, and sign the person in."""
        self._pages.check_same_origin(call)
        form = await read_form(call)
        check_form(call, form, _PURPOSE)
        link = form.get("link", "")
        try:
            check_repeated(form.get("password", ""), form.get("repeated", ""))
            entry = await self._sign_in.use_link(
                link, form.get("password", ""), name_client(call.scope)
            )
        except PasswordRefused as refusal:
            # the link is not used yet, and goes on in the form
            known = link if parse_link(link) else ""
            wrong = refusal.param or "password"
            return self._render(call, link=known, problem=refusal.message, wrong=wrong, status=400)
        except LinkRefused as refusal:
            return self._render(call, problem=refusal.message, status=refusal.status)
        return await begin_session(self._sign_in, call, entry, START)

    def _render(
        self,
        call: Call,
        *,
        link: str = "",
        problem: str = "",
        wrong: str = "",
        status: int = 200,
    ) -> Response:
        """Return the page; the problem stands beside the control that is `wrong`, if one is."""
        secret = read_cookie(call, FORM_COOKIE) or secrets.token_urlsafe(32)
        return self._pages.render(
            "choose_password.html",
            status=status,
            headers=(set_cookie(FORM_COOKIE, secret),),
            sources=f"script-src {self._pages.locate(LINK_SCRIPT)}",
            link_script=LINK_SCRIPT,
            form_token=sign_form(secret, _PURPOSE),
            link=link,
            problem=problem,
            wrong=wrong,
        )


def check_repeated(password: str, repeated: str) -> None:
    """Raise PasswordRefused where the two differ: one of them is mistyped."""
    if password != repeated:
        raise PasswordRefused("The two passwords are not the same.", param="repeated")
