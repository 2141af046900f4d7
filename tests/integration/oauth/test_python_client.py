"""The OAuth client of the MCP SDK for Python, through the whole flow against the real API process.

The resource server here answers as §10.3 has it and verifies tokens by the core's verifier.
"""

import httpx2
import pytest
from aiohttp import web
from mcp.client.auth import OAuthClientProvider
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientMetadata

from gateway_core.api.errors import Unauthenticated
from tests.integration.oauth.flows import OAuthClient


class Storage:
    """What the client keeps."""

    tokens = None
    client = None

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return self.client

    async def set_client_info(self, client):
        self.client = client


@pytest.fixture
async def resource(world):
    """A resource server at the MCP address; the users whom it has served."""
    served = []
    async with OAuthClient(world) as verifier:

        async def serve(request):
            token = request.headers.get("Authorization", "").removeprefix("Bearer ")
            try:
                caller = await verifier.verify(token)
            except Unauthenticated:
                metadata = f"{verifier.base}/.well-known/oauth-protected-resource"
                error = ', error="invalid_token"' if token else ""
                challenge = f'Bearer resource_metadata="{metadata}", scope="mcp:read"{error}'
                return web.Response(status=401, headers={"WWW-Authenticate": challenge})
            served.append((caller.principal.creator.name, sorted(caller.scopes)))
            return web.json_response({})

        app = web.Application()
        app.router.add_post("/mcp", serve)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", world.config.ports.mcp).start()
        yield served
        await runner.cleanup()


async def test_client_of_the_python_sdk_registers_authorizes_and_refreshes(
    world, resource, person, browser
):
    mcp_url = f"{world.env['GATEWAY_MCP_URL']}/mcp"
    storage, back = Storage(), []

    async def show(url):
        page = await browser.get(url)
        page = await browser.submit(page, "/oauth/authorize", account=person.accounts[0])
        back.append(await browser.submit(page, "/oauth/authorize", button="approve"))

    async def come_back():
        given = back[-1].parameters
        return AuthorizationCodeResult(code=given["code"], state=given["state"], iss=given["iss"])

    metadata = OAuthClientMetadata(
        client_name="Python SDK", redirect_uris=["http://127.0.0.1:3030/callback"]
    )
    auth = OAuthClientProvider(mcp_url, metadata, storage, show, come_back)
    async with httpx2.AsyncClient(auth=auth) as client:
        assert (await client.post(mcp_url)).status_code == 200
        assert (await client.post(mcp_url)).status_code == 200
        first = storage.tokens
        assert len(back) == 1
        assert resource == [(person.name, ["mcp:read"])] * 2

        # the access token expires: the client refreshes without asking its user
        auth.context.token_expiry_time = 1
        assert (await client.post(mcp_url)).status_code == 200
        assert len(back) == 1
        assert storage.tokens.refresh_token != first.refresh_token

        # a spent refresh token: the family is gone, and the client asks its user again
        auth.context.current_tokens = first
        auth.context.token_expiry_time = 1
        assert (await client.post(mcp_url)).status_code == 200
        assert len(back) == 2
