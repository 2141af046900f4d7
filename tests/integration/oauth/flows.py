"""An OAuth client of the real API process, and the verifier of a resource server."""

import base64
from contextlib import AsyncExitStack
from typing import Any, Self
from urllib.parse import urlencode

import aiohttp

from gateway_cli.local.state import ID_KEY, PEPPER, read_shared_secret
from gateway_core.accounts.records import project_account, project_user
from gateway_core.api.account import GatewayAccount, GatewayUser
from gateway_core.api.oauth import GatewayGrant, GatewayOAuthClient
from gateway_core.kube.informer import Informer
from gateway_core.kube.read_through import ReadThrough
from gateway_core.oauth.records import project_client, project_grant
from gateway_core.oauth.tokens import TokenMint
from gateway_core.oauth.verification import TokenPrincipal, TokenVerifier
from tests.servers.browser import Browser, Page, make_pkce
from tests.servers.world import World

REDIRECT = "https://app.example.com/callback"


class OAuthClient:
    """One registered client; `async with` opens its connections."""

    def __init__(self, world: World, redirect: str = REDIRECT) -> None:
        self.world = world
        self.base = world.env["GATEWAY_BASE_URL"]
        self.resource = world.env["GATEWAY_MCP_URL"]
        self.redirect = redirect
        self.id = ""
        self.secret: str | None = None
        self.verifier = ""

    async def __aenter__(self) -> Self:
        self._stack = AsyncExitStack()
        connector = aiohttp.TCPConnector(force_close=True)
        session = aiohttp.ClientSession(connector=connector)
        self._session = await self._stack.enter_async_context(session)
        self._kube = await self._stack.enter_async_context(self.world.kube())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def post(self, path: str, **given: Any) -> tuple[int, Any]:
        """Status and JSON of a POST; None for an empty body."""
        async with self._session.post(self.base + path, **given) as answer:
            raw = await answer.read()
            return answer.status, (await answer.json()) if raw else None

    async def register(self, **changes: Any) -> dict[str, Any]:
        """Register; the response."""
        body = {"client_name": "Test client", "redirect_uris": [self.redirect], **changes}
        status, answer = await self.post("/oauth/register", json=body)
        assert status == 201, answer
        self.id, self.secret = answer["client_id"], answer.get("client_secret")
        return answer

    def locate(self, **changes: str | None) -> str:
        """The authorization request; a change to None leaves a parameter out."""
        self.verifier, challenge = make_pkce()
        given = {
            "response_type": "code",
            "client_id": self.id,
            "redirect_uri": self.redirect,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
            "state": "a state",
            "resource": self.resource,
            **changes,
        }
        kept = {name: value for name, value in given.items() if value is not None}
        return f"/oauth/authorize?{urlencode(kept)}"

    async def approve(
        self, browser: Browser, account: str = "demo", path: str | None = None
    ) -> Page:
        """Sign in if need be, choose the account and allow; the page that redirects back."""
        page = await browser.follow(await browser.get(path or self.locate()))
        if page.url.partition("?")[0].endswith("/sign-in"):
            env = self.world.env
            email, password = env["GATEWAY_USER_EMAIL"], env["GATEWAY_USER_PASSWORD"]
            page = await browser.submit(page, "/sign-in", email=email, password=password)
            page = await browser.follow(page)
        page = await browser.submit(page, "/oauth/authorize", account=account)
        if page.location is not None:
            return page
        return await browser.submit(page, "/oauth/authorize", button="approve")

    async def authorize(self, browser: Browser, account: str = "demo") -> dict[str, Any]:
        """The whole way to tokens."""
        page = await self.approve(browser, account)
        assert page.location is not None, page.text
        assert page.location.startswith(self.redirect), page.location
        assert page.parameters["state"] == "a state"
        assert page.parameters["iss"] == self.base
        status, tokens = await self.exchange(page.parameters["code"])
        assert status == 200, tokens
        return tokens

    async def exchange(self, code: str, **changes: str) -> tuple[int, Any]:
        """Exchange a code."""
        return await self.ask_token(
            grant_type="authorization_code",
            code=code,
            redirect_uri=self.redirect,
            code_verifier=self.verifier,
            **changes,
        )

    async def refresh(self, token: str, **changes: str) -> dict[str, Any]:
        """New tokens."""
        status, tokens = await self.ask_token(
            grant_type="refresh_token", refresh_token=token, **changes
        )
        assert status == 200, tokens
        return tokens

    async def refresh_error(self, token: str, **changes: str) -> tuple[int, str]:
        """Status and code of a refused refresh."""
        status, answer = await self.ask_token(
            grant_type="refresh_token", refresh_token=token, **changes
        )
        return status, answer.get("error")

    async def ask_token(self, **form: str) -> tuple[int, Any]:
        """Call the token endpoint as this client."""
        headers = {}
        if self.secret is not None:
            pair = base64.b64encode(f"{self.id}:{self.secret}".encode()).decode()
            headers["Authorization"] = f"Basic {pair}"
        elif "client_id" not in form:
            form["client_id"] = self.id
        return await self.post("/oauth/token", data=form, headers=headers)

    async def revoke(self, token: str) -> None:
        """Revoke a token."""
        answer = await self.post("/oauth/revoke", data={"token": token, "client_id": self.id})
        assert answer == (200, None)

    async def verify(self, token: str, audience: str | None = None) -> TokenPrincipal:
        """What a resource server makes of an access token, by tables that it has just read."""
        secrets = self.world.config.secrets_directory
        kinds = (
            (GatewayGrant, project_grant),
            (GatewayOAuthClient, project_client),
            (GatewayAccount, project_account),
            (GatewayUser, project_user),
        )
        reads = []
        for kind, project in kinds:
            table = Informer(self._kube, kind.plural, project)
            await table._list()
            reads.append(ReadThrough(table, self._kube, kind.plural))
        verifier = TokenVerifier(
            *reads,
            TokenMint(read_shared_secret(secrets, ID_KEY)),
            {1: read_shared_secret(secrets, PEPPER)},
        )
        return await verifier.verify_access_token(token, audience or self.resource)
