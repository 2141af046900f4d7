"""The OAuth client of the MCP SDK for Python, through the whole flow, at the real MCP process."""

from functools import partial

import httpx2
from mcp.client.auth import OAuthClientProvider
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientMetadata


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


async def test_client_of_the_python_sdk_registers_authorizes_and_refreshes(world, person, browser):
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
        ping = partial(client.post, mcp_url, json={"jsonrpc": "2.0", "id": 1, "method": "ping"})
        assert (await ping()).status_code == 200
        assert (await ping()).status_code == 200
        first = storage.tokens
        assert len(back) == 1
        assert first.scope == "mcp:read mcp:tasks"

        # the access token expires: the client refreshes without asking its user
        for _ in range(2):
            spent = storage.tokens.refresh_token
            auth.context.token_expiry_time = 1
            assert (await ping()).status_code == 200
            assert len(back) == 1
            assert storage.tokens.refresh_token != spent

        # a spent refresh token: the family is gone, and the client asks its user again
        auth.context.current_tokens = first
        auth.context.token_expiry_time = 1
        assert (await ping()).status_code == 200
        assert len(back) == 2
