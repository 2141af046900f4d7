"""Single sign-on at a real OpenID Connect provider: who comes in, and what is refused."""

from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import pytest

from tests.servers.browser import Browser
from tests.servers.oidc import serve_oidc
from tests.servers.tenants import describe, describe_account, unique

PEOPLE = {
    "ann": {"email": "Ann@sso.example", "email_verified": True, "name": "Ann <b>SSO</b>"},
    "eve": {"email": "victim@sso.example", "email_verified": False, "name": "Eve"},
    "new": {"email": "new@sso.example", "email_verified": True, "name": "New"},
    "stranger": {"email": "stranger@sso.example", "email_verified": True, "name": "Stranger"},
    "entra": {"email": "ann@trusted.example", "name": "No statement"},
    "text": {"email": "text@sso.example", "email_verified": "true", "name": "Text"},
    "alien": {"email": "alien@elsewhere.example", "email_verified": True, "name": "Alien"},
}


pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def provider(world):
    """The provider, with the API set up for it; as before afterwards."""
    base = world.env["GATEWAY_BASE_URL"]
    before = dict(world.config.extra_env.get("api", {}))
    account = unique("sso")
    world.apply(
        describe_account(account),
        *(
            describe(
                "User",
                unique("sso"),
                {"displayName": name, "email": f"{name}@sso.example", "memberships": []},
            )
            for name in ("ann", "victim")
        ),
    )
    with serve_oidc(f"{base}/sign-in/sso/callback", PEOPLE) as provider:
        secret = world.config.secrets_directory / "oidc-client-secret"
        secret.write_text(provider.client_secret)
        env = {
            **before,
            "GATEWAY_OIDC_ISSUER": provider.issuer,
            "GATEWAY_OIDC_CLIENT_ID": provider.client_id,
            "GATEWAY_OIDC_TITLE": "Acme ID",
        }

        def set_up(**more):
            world.run.restart("api", {**env, **more})

        provider_set_up = (provider, set_up, account)
        set_up()
        yield provider_set_up
    secret.unlink()
    world.run.restart("api", before)


async def sign_on(world, login, browser, change=lambda url: url):
    """The answer to the way back from the provider."""
    page = await browser.get("/sign-in/sso?next=/settings")
    assert page.status == 302, page.text
    async with Browser("http://127.0.0.1", **{"X-Login": login}) as elsewhere:
        page = await elsewhere.get(page.location)
        while page.location is not None and not page.location.startswith(browser.base):
            page = await elsewhere.get(page.location)
    assert page.location is not None, page.text
    return await browser.get(change(page.location))


async def sees(world, login):
    async with Browser(world.env["GATEWAY_BASE_URL"]) as browser:
        page = await sign_on(world, login, browser)
        return page, await browser.get("/settings")


async def test_person_with_a_user_comes_in(world, provider):
    async with Browser(world.env["GATEWAY_BASE_URL"]) as browser:
        assert "Sign in with Acme ID" in (await browser.get("/sign-in")).text
        page = await sign_on(world, "ann", browser)
        assert (page.status, page.location) == (303, f"{browser.base}/settings")
        settings = await browser.get("/settings")
    assert settings.status == 200
    assert "ann" in settings.text


@pytest.mark.parametrize("login", ["eve", "stranger", "nobody", "entra"])
async def test_unverified_unknown_and_failed_sign_ins_are_refused(world, provider, login):
    page, settings = await sees(world, login)
    assert page.status == 403
    assert settings.status == 303
    assert ("email_verified is missing" in page.text) is (login == "entra")


async def test_answer_of_another_browser_state_or_issuer_is_refused(world, provider):
    base = world.env["GATEWAY_BASE_URL"]

    def change(**values):
        def apply(url):
            parts = urlsplit(url)
            query = {**dict(parse_qsl(parts.query)), **values}
            return urlunsplit(parts._replace(query=urlencode(query)))

        return apply

    for changed in (change(state="x"), change(iss="https://evil.example"), change(state="")):
        async with Browser(base) as browser:
            assert (await sign_on(world, "ann", browser, changed)).status == 403
    async with Browser(base) as browser:
        assert (await sign_on(world, "ann", browser, change(code="x"))).status == 502
    async with Browser(base) as attacker, Browser(base) as victim:
        links = []
        await sign_on(world, "ann", attacker, lambda url: links.append(url) or "/healthz")
        await victim.get("/sign-in")
        assert (await victim.get(links[0])).status == 403
        assert (await attacker.get(links[0])).status == 303
        assert (await attacker.get(links[0])).status == 403


async def test_policy_may_create_users_of_its_domains(world, provider):
    _, set_up, account = provider
    set_up(
        GATEWAY_OIDC_USERS="create",
        GATEWAY_OIDC_ACCOUNT=account,
        GATEWAY_OIDC_ROLE="viewer",
        GATEWAY_OIDC_DOMAINS="sso.example,trusted.example",
        GATEWAY_OIDC_TRUSTED_DOMAINS="trusted.example",
    )
    try:
        for _ in range(2):
            page, settings = await sees(world, "new")
            assert (page.status, settings.status) == (303, 200)
        found = world.run.kubectl("get", "gatewayusers", "-o", "yaml")
        assert found.count("email: new@sso.example") == 1
        assert f"accountName: {account}" in found
        for login in ("text", "entra"):
            page, settings = await sees(world, login)
            assert (page.status, settings.status) == (303, 200), login
        for refused in ("alien", "eve"):
            page, _ = await sees(world, refused)
            assert page.status == 403
    finally:
        set_up()
