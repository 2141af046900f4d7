"""The whole authorization flow on the real processes (contract §10.4 to §10.7)."""

from urllib.parse import quote

import aiohttp
import pytest

from gateway_core.api.errors import Unauthenticated
from tests.servers.browser import Browser
from tests.servers.world import wait_for


async def test_client_gets_tokens_rotates_and_revokes_them(world, client):
    async with Browser(client.base) as browser:
        tokens = await client.authorize(browser)
    assert tokens["token_type"] == "Bearer"
    assert (tokens["expires_in"], tokens["scope"]) == (3600, "mcp:read mcp:tasks")
    caller = await client.verify(tokens["access_token"])
    assert (caller.principal.account.name, caller.principal.role) == ("demo", "member")
    assert caller.principal.creator.name == "dana"

    second = await client.refresh(tokens["refresh_token"])
    await client.verify(tokens["access_token"])
    await client.verify(second["access_token"])

    await client.revoke(second["refresh_token"])
    for token in (tokens["access_token"], second["access_token"]):
        with pytest.raises(Unauthenticated):
            await client.verify(token)
    assert await client.refresh_error(second["refresh_token"]) == (400, "invalid_grant")


async def test_admin_sees_and_revokes_access_with_kubectl(world, client):
    async with Browser(client.base) as browser:
        tokens = await client.authorize(browser)
    grant = (await client.verify(tokens["access_token"])).principal.key.name
    shown = world.run.kubectl("get", "gatewaygrants", grant)
    assert "dana" in shown
    assert "Test client" in shown
    stored = world.run.kubectl("get", "gatewaygrants,gatewayoauthclients", "-o", "yaml")
    assert not any(tokens[name] in stored for name in ("access_token", "refresh_token"))
    world.run.kubectl("delete", "gatewaygrant", grant)
    assert await client.refresh_error(tokens["refresh_token"]) == (400, "invalid_grant")


async def read_audit(browser: Browser, word: str) -> str:
    page = await browser.get(f"/console/demo/audit?word={quote(word)}")
    assert page.status == 200
    return " ".join(page.text.split())


@pytest.mark.parametrize("way", ["settings", "application", "kubectl"])
async def test_audit_keeps_access_use_and_its_end_whoever_ends_it(world, client, way):
    name = f"Kept {way}"
    await client.register(client_name=name)
    async with Browser(client.base) as browser:
        tokens = await client.authorize(browser)
        grant = (await client.verify(tokens["access_token"])).principal.key.name
        if way == "settings":
            page = await browser.get("/settings")
            form = next(form for form in page.forms if form.fields.get("grant") == grant)
            await browser.post(form.action, form.fields)
        elif way == "application":
            await client.revoke(tokens["refresh_token"])
        else:
            world.run.kubectl("delete", "gatewaygrant", grant)
        assert await client.refresh_error(tokens["refresh_token"]) == (400, "invalid_grant")
        await wait_for(
            lambda: (
                not world.run.kubectl(
                    "get", "gatewaygrant", grant, "-o", "name", "--ignore-not-found"
                )
            ),
            what="the end of the grant",
        )
        text = await read_audit(browser, name)
    by = {"settings": "Dana", "application": f"Application {name}", "kubectl": "Administrator"}
    assert text.count("access given") == 1
    assert text.count("access revoked") == 1
    assert by[way] in text, text


async def test_pages_of_any_origin_may_read_discovery_and_tokens(world, client):
    async with aiohttp.ClientSession() as session:
        for path in (
            "/.well-known/oauth-protected-resource",
            "/.well-known/oauth-protected-resource/mcp",
            "/.well-known/oauth-authorization-server",
        ):
            for method in ("GET", "HEAD", "OPTIONS"):
                async with session.request(method, client.base + path) as answer:
                    assert answer.status in (200, 204), (method, path)
                    assert answer.headers["Access-Control-Allow-Origin"] == "*"
                    described = await answer.json() if method == "GET" else {}
                if "resource" in described:
                    # the identifier from which the address was made (RFC 9728 §3.3)
                    ending = path.removeprefix("/.well-known/oauth-protected-resource")
                    assert described["resource"] == f"{client.resource}{ending}"
        async with session.get(client.base + "/.well-known/openid-configuration") as answer:
            assert answer.status == 404
        async with session.get(client.base + "/.well-known/oauth-authorization-server") as answer:
            described = await answer.json()
    assert described["issuer"] == client.base
    assert described["code_challenge_methods_supported"] == ["S256"]
