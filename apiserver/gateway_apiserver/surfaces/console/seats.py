"""Who uses the console, and the frame of its pages: sign-in, choice of account, role, forms."""

import hashlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import orjson
from markupsafe import Markup
from starlette.routing import BaseRoute

from gateway_apiserver.endpoints import Call, CallRoute
from gateway_apiserver.surfaces.console.choices import SESSION_PREFIX
from gateway_apiserver.surfaces.console.parts import (
    ONCE,
    Field,
    Form,
    Notice,
    Region,
    Screen,
    Sent,
)
from gateway_apiserver.surfaces.console.problems import Problems, explain
from gateway_apiserver.surfaces.oauth.forms import parse_pairs, read_pairs
from gateway_apiserver.surfaces.pages.html import FormExpired, Pages, redirect
from gateway_apiserver.surfaces.pages.sign_in import SignInRoutes, locate_sign_in
from gateway_apiserver.surfaces.validation import refuse_fields
from gateway_core.accounts.authentication import Principal, find_current
from gateway_core.accounts.guardrails import NO_RULES
from gateway_core.accounts.records import AccountRecord, KeyRecord
from gateway_core.accounts.roles import Act, is_confined, refuse_session
from gateway_core.accounts.sign_in import SignedIn
from gateway_core.accounts.throttle import Allowance, Throttle
from gateway_core.api.account import Role
from gateway_core.api.errors import Forbidden, GatewayError, InvalidRequest, NotFound
from gateway_core.kube.read_through import ReadThrough
from gateway_web.context import Header
from gateway_web.errors import list_error_headers
from gateway_web.responses import NO_SNIFF, NO_STORE, Response

CONSOLE_ALLOWANCES: Mapping[str, Allowance] = {"console": Allowance(600, 60, optional=True)}
"""Pages, forms and streams of one user a minute."""
ROOT = "/console"
_OPEN = (429, 503, 504)
"""After these a form that was sent before may still have been carried out."""
_IMPOSSIBLE, _MISSING = "This is not possible", "Not found"
_UNKNOWN = "There is no such account, or you are not a member of it."

DONE: Mapping[str, str] = {
    "changed": "The changes are saved.",
    "removed": "The member is removed. Calls with their keys end within seconds.",
    "revoked": "The key is revoked. Calls with it end within seconds.",
    "deleted": "Deleted.",
    "uploaded": "The file is stored.",
    "redelivered": "The callback is delivered once more.",
    "task-cancelled": "The cancellation of the task is requested.",
    "cancelled": "The cancellation of the batch is requested.",
    "assigned": "The guardrail holds for the key now.",
    "unassigned": "The guardrail no longer holds for the key.",
}
"""What a page says after a form was sent, by the word in its address."""


@dataclass(frozen=True, slots=True)
class Seat:
    """A signed-in user in one of their accounts."""

    signed_in: SignedIn
    account: AccountRecord
    role: Role

    @property
    def home(self) -> str:
        """The address of the account's first page."""
        return f"{ROOT}/{self.account.name}"

    @property
    def principal(self) -> Principal:
        """The user as a caller of operations.

        Its key has no secret and no rules. Charges of what the user starts here are under its name.
        """
        user = self.signed_in.user
        key = KeyRecord(
            name=f"{SESSION_PREFIX}{user.name}",
            account=self.account.name,
            key_class="Standard",
            creator=user.name,
            usable=True,
            revoked=False,
            expires_at=float("inf"),
            tokens=(),
            rules=NO_RULES,
        )
        return Principal(self.account, key, self.role, user)

    def may(self, act: Act, *, confined: bool = True) -> bool:
        """Return whether the role allows it; without `confined` only where it allows all of it."""
        if act is Act.GOVERN and is_confined(self.role) and not confined:
            return False
        return refuse_session(act, self.role) is None

    def require(self, act: Act, *, confined: bool = True) -> None:
        """Raise Forbidden where the role does not allow it, as `may` says."""
        if not self.may(act, confined=confined):
            text = f"Your role, {self.role}, does not allow this."
            raise Forbidden(text, code="insufficient_role")

    def sign(self, path: str) -> str:
        """Return the CSRF token of the form that is sent to this path."""
        return self.signed_in.session.make_form_token(f"console {path}")

    def offer(self, action: str, submit: str, fields: Sequence[Field] = (), **more: Any) -> Form:
        """Return a form that is sent to this path; `more` as of `Form`."""
        return Form(action, submit, fields, token=self.sign(action), **more)


Values = Mapping[str, str]
Shown = Callable[[Call, Seat], Awaitable[Screen | Response | None]]
Taken = Callable[[Call, Seat, Values], Awaitable[Screen | Response | None]]


@dataclass(frozen=True, slots=True)
class Section:
    """An entry of the navigation."""

    title: str
    path: str
    act: Act = Act.READ
    confined: bool = True


class Console:
    """Adds pages to the routes, each behind the sign-in and for a member of its account."""

    def __init__(
        self,
        routes: list[BaseRoute],
        pages: Pages,
        sign_in: SignInRoutes,
        accounts: ReadThrough[AccountRecord],
        throttle: Throttle,
        *,
        media_url: str,
    ) -> None:
        self._routes = routes
        self._pages = pages
        self._sign_in = sign_in
        self._accounts = accounts
        self._throttle = throttle
        self._media_url = media_url
        self._sections: list[Section] = []
        enter = pages.guard(self._enter)
        starts = ("/", ROOT, f"{ROOT}/")
        routes += [CallRoute("GET", path, enter, "console_enter") for path in starts]

    def add_section(self, section: Section) -> None:
        """Add an entry to the navigation, after those before it."""
        self._sections.append(section)

    def add_page(self, path: str, show: Shown, label: str) -> None:
        """Add a page; `path` is below the account's."""

        async def serve(call: Call) -> Response | None:
            seat, problem = await self._seat(call)
            if seat is None:
                return problem
            try:
                return self._render(call, seat, await show(call, seat))
            except GatewayError as error:
                screen, sent = await _show_unfiltered(call, seat, show, error)
                return self._render(call, seat, screen, error=error, sent=sent)

        full = f"{ROOT}/{{account}}{path}"
        self._routes.append(CallRoute("GET", full, self._pages.guard(serve), f"console_{label}"))

    def add_form(
        self, path: str, take: Taken, label: str, show: Shown, *, uploads: bool = False
    ) -> None:
        """Add what takes a form. After an error `show` is shown again, with the problems marked.

        Of one that `uploads` the body is left to `take`: its token stands in the address.
        """

        async def serve(call: Call) -> Response | None:
            self._pages.check_same_origin(call)
            values = read_query(call) if uploads else dict(await read_pairs(call))
            seat, problem = await self._seat(call)
            if seat is None:
                return problem
            own = call.scope["path"]
            token = values.pop("form_token", "")
            if not seat.signed_in.session.check_form_token(f"console {own}", token):
                raise FormExpired
            try:
                screen = await take(call, seat, values)
                keeps = isinstance(screen, Screen) and screen.keeps
                sent = Sent(own, values, is_open=True) if keeps and values else None
                return self._render(call, seat, screen, sent=sent)
            except GatewayError as error:
                sent = Sent(own, values, error.status in _OPEN)
                screen = None
                with suppress(GatewayError):
                    screen = await show(call, seat)
                if not isinstance(screen, Screen):
                    screen = Screen(_IMPOSSIBLE, _offer_again(seat, sent))
                return self._render(call, seat, screen, error=error, sent=sent)

        full = f"{ROOT}/{{account}}{path}"
        self._routes.append(CallRoute("POST", full, self._pages.guard(serve), f"console_{label}"))

    async def find_seat(self, call: Call) -> Seat | None:
        """Return the signed-in user's seat in the account of the path; None without a session.

        Raises NotFound, TooManyCalls.
        """
        signed_in = await self._find_user(call)
        if signed_in is None:
            return None
        name = call.scope["path_params"]["account"]
        role = signed_in.user.find_role(name)
        account = None if role is None else await self._find_account(name)
        if role is None or account is None:
            raise NotFound(_UNKNOWN)
        call.context.account = account.name
        return Seat(signed_in, account, role)

    async def _find_user(self, call: Call) -> SignedIn | None:
        """Return the signed-in user; each call is counted."""
        signed_in = await self._sign_in.find(call)
        if signed_in is not None:
            await self._throttle.count("console", signed_in.user.name)
        return signed_in

    async def _seat(self, call: Call) -> tuple[Seat | None, Response]:
        query = f"?{call.query.decode('latin-1')}" if call.query else ""
        sign_in = locate_sign_in(call.scope["path"] + query)
        if read_header(call, b"hx-request"):
            # scripts would show the page of the sign-in as a part of this one
            return await self.find_seat(call), Response(
                204, b"", (NO_STORE, (b"hx-redirect", sign_in.encode()))
            )
        return await self.find_seat(call), redirect(sign_in)

    async def _enter(self, call: Call) -> Response:
        """Send the user to their first account."""
        signed_in = await self._find_user(call)
        if signed_in is None:
            return redirect(locate_sign_in("/"))
        for name, _ in signed_in.user.roles:
            account = await self._find_account(name)
            if account is not None:
                return redirect(f"{ROOT}/{account.name}")
        return self._pages.render("console/no_account.html", signed_in)

    async def _find_account(self, name: str) -> AccountRecord | None:
        """Return the account, unless it is suspended."""
        account = await find_current(self._accounts, name)
        return None if account is None or account.suspended else account

    def _render(
        self,
        call: Call,
        seat: Seat,
        screen: Screen | Response | None,
        *,
        error: GatewayError | None = None,
        sent: Sent | None = None,
    ) -> Response | None:
        if not isinstance(screen, Screen):
            return screen
        signed_in, path = seat.signed_in, call.scope["path"]
        problems = Problems({}, ())
        if error is not None:
            forms = (form for form in screen.list_forms() if sent is not None and sent.is_of(form))
            form = next(forms, None)
            problems = explain(error, () if form is None else form.fields)
        if read_header(call, b"hx-target") == b"region" and call.scope["method"] == "GET":
            return self._render_region(call, screen, error, problems)
        if sent is not None:
            sent = replace(sent, problems=problems.fields)
        done = DONE.get(read_query(call).get("done", "")) if error is None else None
        notices = [Notice(done)] if done else []
        if problems.rest:
            notices.append(Notice(" ".join(problems.rest), is_problem=True))
        known = [self._accounts.table.get(name) for name, _ in signed_in.user.roles]
        sections = [
            (section.title, seat.home + section.path, _is_within(path, seat.home, section.path))
            for section in self._sections
            if seat.may(section.act, confined=section.confined)
        ]
        headers = [] if error is None else list_error_headers(error)
        region = next((part for part in screen.parts if isinstance(part, Region)), None)
        return self._pages.render(
            "console/screen.html",
            signed_in,
            status=200 if error is None else error.status,
            headers=(*headers, *_keep_address(call), *_keep_place(problems)),
            sources=(
                f"connect-src 'self'; script-src {self._pages.script_urls};"
                f" media-src {self._media_url}"
            ),
            seat=seat,
            screen=screen,
            notices=notices,
            region="" if region is None else self._fill_region(region, sent)[0],
            # the form that was refused is shown as it was sent
            sent=sent,
            sections=sections,
            accounts=[account for account in known if account and not account.suspended],
        )

    def _render_region(
        self, call: Call, screen: Screen, error: GatewayError | None, problems: Problems
    ) -> Response:
        """Return the page's region for scripts, which replace it; 304 where they have it."""
        region = next((part for part in screen.parts if isinstance(part, Region)), Region(()))
        if error is not None:
            # someone is typing: the controls stay as they are
            region = replace(region, parts=(Notice(problems.text, is_problem=True),))
        text, tag = self._fill_region(region)
        if error is None and read_header(call, b"if-none-match") == tag:
            return Response(304, b"", (NO_STORE,))
        headers = [] if error is None else list_error_headers(error)
        own = ((b"content-type", b"text/html; charset=utf-8"), NO_STORE, NO_SNIFF)
        return Response(200 if error is None else error.status, text.encode(), (*own, *headers))

    def _fill_region(self, region: Region, sent: Sent | None = None) -> tuple[Markup, bytes]:
        """Return the region's text, and the tag of its content."""
        inner = self._pages.fill("console/inner.html", region=region, sent=sent)
        tag = f'"{hashlib.sha256(inner.encode()).hexdigest()[:24]}"'
        seen = orjson.dumps({"If-None-Match": tag}).decode()
        return self._pages.fill(
            "console/region.html", region=region, inner=inner, seen=seen
        ), tag.encode()


async def _show_unfiltered(
    call: Call, seat: Seat, show: Shown, error: GatewayError
) -> tuple[Screen, Sent | None]:
    """Return the page whose filter is wrong, without any filter, and the filter as it was sent."""
    if isinstance(error, InvalidRequest) and error.errors:
        with suppress(GatewayError):
            sent = Sent(call.scope["path"], read_query(call), is_filter=True)
            scope = {**call.scope, "query_string": b""}
            screen = await show(Call(scope, call.receive, call.send, call.context), seat)
            if isinstance(screen, Screen):
                return screen, sent
    return Screen(_MISSING if error.status == 404 else _IMPOSSIBLE, ()), None


def _offer_again(seat: Seat, sent: Sent | None) -> list[Form]:
    """Return forms that send the same request again, if the form's page cannot be shown."""
    if sent is None or not sent.is_open or ONCE not in sent.given:
        return []
    return [seat.offer(sent.path, "Send the same again", hidden=tuple(sent.given.items()))]


def _keep_address(call: Call) -> list[Header]:
    """For scripts: what a form is answered with itself has no address to be opened anew."""
    return [(b"hx-push-url", b"false")] if call.scope["method"] == "POST" else []


def _keep_place(problems: Problems) -> list[Header]:
    """For scripts: a page whose only problems are beside controls stays where it is scrolled."""
    is_beside = problems.fields and not problems.rest
    return [(b"hx-reswap", b"outerHTML show:none")] if is_beside else []


def read_header(call: Call, name: bytes) -> bytes:
    """Return the value of a request's header; empty without one."""
    return dict(call.headers).get(name, b"")


def _is_within(path: str, home: str, section: str) -> bool:
    own = home + section
    return path == own or (section != "" and path.startswith(own + "/"))


def read_query(call: Call) -> dict[str, Any]:
    """Return the parameters of a page's address; of repeated ones the last. InvalidRequest."""
    try:
        return dict(parse_pairs(call.query))
    except GatewayError as error:
        raise InvalidRequest("The address is malformed.") from error


def read_choice(query: Mapping[str, Any], name: str, words: Collection[str]) -> str:
    """Return the filter of a list: one of the words, or empty. InvalidRequest, which names it."""
    given: str = query.get(name, "").strip()
    if given and given not in words:
        raise refuse_fields({name: [f"must be one of {', '.join(filter(None, words))}"]})
    return given
