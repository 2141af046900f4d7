"""A person at the pages of the API on fakes."""

import re
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any
from urllib.parse import urlencode, urlsplit

import argon2

from gateway_core.api.times import format_time
from tests.servers.browser import Browser, Page, make_pkce
from tests.unit.apiserver.gateway import Gateway, call

PASSWORD = "k6rmj-xe446-4zzy5-hjuhn-vhhw3"
REDIRECT = "https://app.example.com/cb"
# one of the gateway's own parameters takes 30 ms to check
_ROW = re.compile(r'<tr role="row">(.*?)</tr>', re.DOTALL)
_VALUE = re.compile(r'<span class="value">(.*?)</span></td>', re.DOTALL)
_TAG = re.compile("<[^>]+>")
_HASH = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash(PASSWORD)


class AppBrowser(Browser):
    """A browser whose requests go to the application itself."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__("http://127.0.0.1:8080")
        self._gateway = gateway

    async def _exchange(
        self, method: str, url: str, fields: dict[str, str] | None, headers: dict[str, str]
    ) -> tuple[int, list[tuple[str, str]], str]:
        parts = urlsplit(url)
        content = b"" if fields is None else urlencode(fields).encode()
        if fields is not None:
            headers = {**headers, "Content-Type": "application/x-www-form-urlencoded"}
        answer = await call(
            self._gateway.app,
            method,
            parts.path,
            headers=list(headers.items()),
            content=content,
            query=parts.query,
        )
        given = [(name.decode(), value.decode()) for name, value in answer.raw_headers]
        return answer.status, given, answer.body.decode()


def read_table(page: Page) -> list[list[str]]:
    """The texts of the cells of the page's table, row by row."""
    rows = [_VALUE.findall(row) for row in _ROW.findall(page.body)]
    return [[unescape(_TAG.sub("", cell)).strip() for cell in row] for row in rows if row]


def put_person(gateway: Gateway, name: str, **roles: str) -> None:
    """A user with the password, and a role in each account."""
    memberships = [{"accountName": account, "role": role} for account, role in roles.items()]
    spec = {
        "displayName": name,
        "email": f"{name}@example.com",
        "memberships": memberships,
        "passwordHash": _HASH,
    }
    gateway.kube.put("gatewayusers", {"metadata": {"name": name}, "spec": spec})


async def enter(gateway: Gateway, name: str) -> AppBrowser:
    """A browser in which the person has signed in."""
    browser = AppBrowser(gateway)
    page = await browser.sign_in(f"{name}@example.com", PASSWORD)
    assert page.status == 303, page.text
    return browser


def put_client(gateway: Gateway, **changes: Any) -> str:
    """A client; its id."""
    client_id = gateway.mint.mint_random("client", "")
    spec = {"clientName": "App", "redirectUris": [REDIRECT], "dynamic": True, **changes}
    name = client_id.replace("_", "-", 1)
    gateway.kube.put("gatewayoauthclients", {"metadata": {"name": name}, "spec": spec})
    return client_id


def locate(client_id: str, **changes: str) -> str:
    """The authorization request of a client."""
    given = {
        "response_type": "code",
        "client_id": client_id,
        "code_challenge": make_pkce()[1],
        "code_challenge_method": "S256",
        "state": "s",
        **changes,
    }
    return f"/oauth/authorize?{urlencode(given)}"


def find_wrong(body: str) -> list[str]:
    """Return the ids of the controls that are marked and described, and have the keyboard."""
    marked = r'<input id="([^"]+)"[^>]*"[^"]*\bproblem" aria-invalid="true" autofocus>'
    assert body.count('id="problem"') == body.count("aria-invalid") == body.count("autofocus") == 1
    return re.findall(marked, body)


def put_grant(gateway: Gateway, name: str, user: str, **spec: Any) -> None:
    """A grant of a user, to an application."""
    later = format_time(datetime.now(UTC) + timedelta(days=9))
    base = {
        "userName": user,
        "accountName": "demo",
        "clientId": "client_a",
        "clientName": f"App of {user}",
        "redirectHost": "app.example.com",
        "scopes": ["mcp:read"],
        "resource": "https://mcp.example.com",
        "expirationTime": later,
        "refreshToken": {"digest": "0" * 64, "expirationTime": later},
    }
    obj = {"metadata": {"name": f"grant-{name}"}, "spec": {**base, **spec}}
    gateway.kube.put("gatewaygrants", obj)
