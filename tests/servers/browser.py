"""A browser without a screen: cookies, forms and redirects as a user agent has them.

For tests of the pages' rules over HTTP; how the pages look and work is tested in Chromium.
"""

import asyncio
import hashlib
import secrets
from base64 import urlsafe_b64encode
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any, Self
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit

import aiohttp

TRIES = 5
"""Attempts at a request that is answered 503."""


@dataclass
class Form:
    """A form of a page; `buttons` are the submit buttons by value."""

    action: str
    method: str
    fields: dict[str, str] = field(default_factory=dict)
    buttons: dict[str, str] = field(default_factory=dict)


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.forms: list[Form] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.forms.append(Form(given.get("action", ""), given.get("method", "get")))
        elif tag == "input" and "name" in given and self.forms:
            if given.get("type") == "radio" and "checked" not in given:
                return
            self.forms[-1].fields[given["name"]] = given.get("value", "")
        elif tag == "button" and given.get("name") and self.forms:
            self.forms[-1].buttons[given["value"]] = given["name"]

    def handle_data(self, data: str) -> None:
        self.text += data


@dataclass
class Page:
    """An answer. `location` is where it redirects to, resolved."""

    url: str
    status: int
    headers: dict[str, str]
    body: str
    cookies: list[str]
    location: str | None = None
    forms: list[Form] = field(default_factory=list)
    text: str = ""

    def form(self, action: str) -> Form:
        """The form that is sent to this path."""
        return next(form for form in self.forms if form.action == action)

    @property
    def parameters(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.location or "").query))


class Browser:
    """One user agent of one site.

    `base` is its origin, `local_host` the address that it connects from.
    """

    def __init__(self, base: str, *, local_host: str | None = None, **headers: str) -> None:
        self.base = base
        self._local_address = None if local_host is None else (local_host, 0)
        self.cookies: dict[str, str] = {}
        self._headers = headers

    async def __aenter__(self) -> Self:
        # a kept connection may have been closed by a restart
        connector = aiohttp.TCPConnector(force_close=True, local_addr=self._local_address)
        jar = aiohttp.DummyCookieJar()
        self._session = aiohttp.ClientSession(connector=connector, cookie_jar=jar)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def get(self, path: str, **headers: str) -> Page:
        """One GET, without following redirects."""
        return await self._send("GET", path, None, headers)

    async def submit(
        self, page: Page, action: str, *, button: str = "", headers: Any = None, **values: str
    ) -> Page:
        """Send a form of a page, by the button with this value."""
        form = page.form(action)
        fields = {**form.fields, **values}
        if button:
            fields[form.buttons[button]] = button
        return await self.post(form.action, fields, **(headers or {}))

    async def post(self, path: str, fields: dict[str, str], **headers: str) -> Page:
        own = {"Origin": "null", "Sec-Fetch-Site": "same-origin", **headers}
        return await self._send("POST", path, fields, own)

    async def follow(self, page: Page) -> Page:
        """Follow redirects as long as they stay on the site."""
        while page.location is not None and page.location.startswith(self.base):
            page = await self.get(page.location)
        return page

    async def sign_in(self, email: str, password: str, after: str = "/settings") -> Page:
        """Sign in by the form; the page that comes of it."""
        page = await self.get(f"/sign-in?{urlencode({'next': after})}")
        return await self.submit(page, "/sign-in", email=email, password=password)

    async def _send(
        self, method: str, path: str, fields: dict[str, str] | None, headers: dict[str, str]
    ) -> Page:
        url = urljoin(self.base, path)
        sent = {**self._headers, **headers}
        if self.cookies:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        status, given, body = await self._exchange(method, url, fields, sent)
        cookies = [value for name, value in given if name == "set-cookie"]
        for cookie in cookies:
            name, _, rest = cookie.partition("=")
            self.cookies[name] = rest.partition(";")[0]
            if "Max-Age=0" in cookie:
                del self.cookies[name]
        parser = _Parser()
        parser.feed(body)
        location = dict(given).get("location")
        return Page(
            url=url,
            status=status,
            headers=dict(given),
            body=body,
            cookies=cookies,
            location=None if location is None else urljoin(url, location),
            forms=parser.forms,
            text=" ".join(parser.text.split()),
        )

    async def _exchange(
        self, method: str, url: str, fields: dict[str, str] | None, headers: dict[str, str]
    ) -> tuple[int, list[tuple[str, str]], str]:
        """Status, headers by lower-case name, and body of the answer.

        A 503 is asked for again, as its page says: a machine may stand still for seconds.
        """
        for left in reversed(range(TRIES)):
            async with self._session.request(
                method, url, data=fields, headers=headers, allow_redirects=False
            ) as answer:
                given = [(name.lower(), value) for name, value in answer.headers.items()]
                status, text = answer.status, await answer.text()
            if status != 503 or not left:
                break
            await asyncio.sleep(1)
        return status, given, text


def make_pkce() -> tuple[str, str]:
    """A verifier and its S256 challenge."""
    verifier = secrets.token_urlsafe(48)
    hashed = hashlib.sha256(verifier.encode()).digest()
    return verifier, urlsafe_b64encode(hashed).rstrip(b"=").decode()
