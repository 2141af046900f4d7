"""Attacks on the authorization server and its pages: all are refused (contract §10.5 to §10.7)."""

import asyncio
from urllib.parse import urlencode

import aiohttp
import pytest

from gateway_core.accounts.passwords import generate_password, hash_password
from gateway_core.api.errors import Unauthenticated
from tests.integration.oauth.conftest import make_person
from tests.integration.oauth.flows import REDIRECT, OAuthClient
from tests.servers.browser import Browser
from tests.servers.tenants import describe_account, unique
from tests.servers.world import wait_for

PAGES = ("/sign-in", "/settings", "/oauth/authorize?client_id=none")
MARKUP = '"><script>alert(1)</script><img src=x onerror=alert(1)>'


async def get_code(client, browser, person, **changes):
    path = client.locate(**changes)
    page = await client.approve(browser, person.accounts[0], path)
    return page.parameters["code"]


async def get_tokens(client, browser, person):
    return await client.authorize(browser, person.accounts[0])


async def is_dead(client, *tokens):
    for token in tokens:
        with pytest.raises(Unauthenticated):
            await client.verify(token)
    return True


# codes and tokens


async def test_replayed_code_is_refused_and_revokes_what_it_issued(client, browser, person):
    code = await get_code(client, browser, person)
    status, tokens = await client.exchange(code)
    assert status == 200
    assert (await client.exchange(code))[1]["error"] == "invalid_grant"
    assert await is_dead(client, tokens["access_token"])
    assert await client.refresh_error(tokens["refresh_token"]) == (400, "invalid_grant")


async def test_concurrent_redemptions_leave_no_grant(client, browser, person):
    code = await get_code(client, browser, person)
    answers = await asyncio.gather(*(client.exchange(code) for _ in range(8)))
    tokens = [body["access_token"] for status, body in answers if status == 200]
    assert len(tokens) <= 1
    assert await is_dead(client, *tokens)


async def test_forged_refresh_token_revokes_nothing(client, browser, person):
    tokens = await get_tokens(client, browser, person)
    good = tokens["refresh_token"]
    swapped = good[:-1] + ("x" if good[-1] != "x" else "y")
    for forged in (swapped, good.replace("_1_", "_2_"), tokens["access_token"], "x" * 5000):
        assert await client.refresh_error(forged) == (400, "invalid_grant")
    await client.refresh(good)


async def test_another_client_gains_nothing_by_a_stolen_code_or_token(world, browser, person):
    async with OAuthClient(world) as client, OAuthClient(world) as thief:
        await client.register()
        await thief.register()
        code = await get_code(client, browser, person)
        thief.verifier = client.verifier
        assert (await thief.exchange(code))[1]["error"] == "invalid_grant"
        tokens = await get_tokens(client, browser, person)
        assert (await thief.refresh_error(tokens["refresh_token"]))[1] == "invalid_grant"
        await thief.revoke(tokens["refresh_token"])
        await client.refresh(tokens["refresh_token"])


async def test_confidential_client_needs_its_secret(world, browser, person):
    async with OAuthClient(world) as client:
        await client.register(token_endpoint_auth_method="client_secret_basic")
        tokens = await get_tokens(client, browser, person)
        secret, client.secret = client.secret, None
        assert (await client.refresh_error(tokens["refresh_token"]))[0] == 401
        client.secret = "gwcs_wrong"
        assert await client.refresh_error(tokens["refresh_token"]) == (401, "invalid_client")
        client.secret = secret
        await client.refresh(tokens["refresh_token"])


async def test_scopes_never_grow(client, browser, person):
    code = await get_code(client, browser, person, scope="mcp:read unknown")
    _, tokens = await client.exchange(code)
    assert tokens["scope"] == "mcp:read"
    error = await client.refresh_error(tokens["refresh_token"], scope="mcp:read mcp:tasks")
    assert error == (400, "invalid_scope")
    assert (await client.verify(tokens["access_token"])).scopes == {"mcp:read"}


async def test_access_token_opens_no_other_surface(client, browser, person):
    tokens = await get_tokens(client, browser, person)
    headers = {"Authorization": f"Bearer {tokens['access_token']}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        for path in ("/api/v1/me", "/v1/models", "/v1/files", "/api/v1/management/keys"):
            async with session.get(client.base + path) as answer:
                assert answer.status == 401, path
    with pytest.raises(Unauthenticated):
        await client.verify(tokens["access_token"], client.base)


# PKCE, redirect URIs, resources


PKCE = (
    {"code_challenge": None, "code_challenge_method": None},
    {"code_challenge": None},
    {"code_challenge_method": None},
    {"code_challenge_method": "plain"},
    {"code_challenge_method": "s256"},
    {"code_challenge": "a" * 42},
    {"code_challenge": "a" * 129},
    {"code_challenge": "!" * 43},
)


async def test_pkce_cannot_be_left_out_or_downgraded(client, browser):
    for changes in PKCE:
        page = await browser.get(client.locate(**changes))
        assert page.status == 302
        assert page.parameters["error"] == "invalid_request", changes
        assert (page.parameters["state"], page.parameters["iss"]) == ("a state", client.base)


async def test_wrong_verifier_gets_no_token_and_spends_the_code(client, browser, person):
    code = await get_code(client, browser, person)
    right = client.verifier
    for verifier in ("a" * 43, right):
        client.verifier = verifier
        assert (await client.exchange(code))[1]["error"] == "invalid_grant"
    code = await get_code(client, browser, person)
    client.verifier = ""
    assert (await client.exchange(code))[0] == 400


URIS = (
    "https://app.example.com/callback/",
    "https://app.example.com/callback?x=1",
    "https://app.example.com/callback#x",
    "https://app.example.com:444/callback",
    "https://app.example.com.evil.example/callback",
    "https://app.example.com@evil.example/callback",
    "https://app.example.com/callback/../../evil",
    "https://app.example.com\\@evil.example/callback",
    "http://app.example.com/callback",
    "//evil.example",
    "javascript:alert(1)//https://app.example.com/callback",
    "https://app.example.com/callback\r\nSet-Cookie: a=b",
)


async def test_redirect_uri_that_differs_is_an_error_page_and_no_redirect(client, browser):
    for uri in URIS:
        page = await browser.get(client.locate(redirect_uri=uri))
        assert (page.status, page.location) == (400, None), uri
        assert page.headers["content-type"].startswith("text/html")


async def test_another_resource_is_refused_at_both_endpoints(client, browser, person):
    for resource in ("https://evil.example", f"{client.resource}/other"):
        page = await browser.get(client.locate(resource=resource))
        assert page.parameters["error"] == "invalid_target"
        code = await get_code(client, browser, person)
        assert (await client.exchange(code, resource=resource))[1]["error"] == "invalid_target"


async def test_token_request_must_name_the_same_redirect_uri(client, browser, person):
    code = await get_code(client, browser, person)
    client.redirect = "https://app.example.com/other"
    assert (await client.exchange(code))[1]["error"] == "invalid_grant"


async def test_empty_parameters_count_as_absent(client, browser, person):
    code = await get_code(client, browser, person, resource="", scope="", redirect_uri="", state="")
    client.redirect = ""
    assert (await client.exchange(code))[0] == 200


async def test_issuer_is_no_matter_of_the_host_that_a_request_names(client, browser, person):
    spoofed = {
        "Host": "evil.example",
        "X-Forwarded-Host": "evil.example",
        "X-Forwarded-Proto": "https",
        "Forwarded": "host=evil.example",
    }
    page = await browser.get("/.well-known/oauth-authorization-server", **spoofed)
    assert "evil" not in page.body
    page = await browser.get(client.locate(code_challenge_method="plain"), **spoofed)
    assert page.parameters["iss"] == client.base
    async with Browser(client.base) as stranger:
        page = await stranger.get(client.locate(), **spoofed)
    assert "evil" not in page.headers["location"]


async def test_code_and_tokens_stay_with_the_account_that_was_chosen(client, browser, person):
    first, second = person.accounts
    code = await get_code(client, browser, person)
    _, tokens = await client.exchange(code, account=second)
    assert (await client.verify(tokens["access_token"])).principal.account.name == first
    tokens = await client.refresh(tokens["refresh_token"], account=second)
    assert (await client.verify(tokens["access_token"])).principal.account.name == first


async def test_unsupported_bodies_and_grant_types_are_refused(client):
    status, answer = await client.post("/oauth/token", json={"grant_type": "refresh_token"})
    assert (status, answer["error"]) == (400, "invalid_request")
    for grant_type in ("password", "client_credentials", "implicit"):
        status, answer = await client.ask_token(grant_type=grant_type)
        assert (status, answer["error"]) == (400, "unsupported_grant_type")
    status, answer = await client.ask_token(grant_type="refresh_token", pad="x" * 40_000)
    assert status == 413


# the pages


async def test_no_page_may_be_framed_cached_or_run_scripts(client, browser, person):
    pages = [await browser.get(path) for path in PAGES]
    choice = await browser.get(client.locate())
    consent = await browser.submit(choice, "/oauth/authorize", account=person.accounts[0])
    for page in (*pages, choice, consent):
        headers = page.headers
        assert headers["x-frame-options"] == "DENY"
        assert headers["cache-control"] == "no-store"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["x-content-type-options"] == "nosniff"
        policy = headers["content-security-policy"]
        assert "frame-ancestors 'none'" in policy
        assert "default-src 'none'" in policy
        assert "script-src" not in policy
        assert "<script" not in page.body
        assert "://" not in page.body.replace(client.base, "").replace(REDIRECT, "").replace(
            client.resource, ""
        )
        assert "access-control-allow-origin" not in headers


async def test_consent_needs_the_token_of_this_session_and_this_request(
    world, client, browser, person
):
    choice = await browser.get(client.locate())
    consent = await browser.submit(choice, "/oauth/authorize", account=person.accounts[0])
    form = consent.form("/oauth/authorize")
    good = {**form.fields, "decision": "approve"}
    other = await make_person(world, *person.accounts)
    async with Browser(client.base) as stranger:
        await stranger.sign_in(other.email, other.password)
        theirs = (await stranger.get(client.locate())).form("/oauth/authorize").fields
    async with OAuthClient(world) as another:
        await another.register()
        elsewhere = (await browser.get(another.locate())).form("/oauth/authorize").fields
    attacks = [
        ({**good, "form_token": ""}, {}),
        ({**good, "form_token": theirs["form_token"]}, {}),
        ({**good, "form_token": elsewhere["form_token"]}, {}),
        ({**good, "scope": "mcp:read"}, {}),
        ({**good, "state": "other"}, {}),
        (good, {"Sec-Fetch-Site": "cross-site"}),
        (good, {"Sec-Fetch-Site": "same-site"}),
        (good, {"Origin": "https://evil.example"}),
    ]
    for fields, headers in attacks:
        page = await browser.post("/oauth/authorize", fields, **headers)
        assert (page.status, page.location) == (403, None), (fields, headers)
    page = await browser.post("/oauth/authorize", good)
    assert "code" in page.parameters


async def test_sign_in_needs_the_form_that_this_browser_was_given(world, person):
    base = world.env["GATEWAY_BASE_URL"]
    async with Browser(base) as victim, Browser(base) as attacker:
        theirs = (await attacker.get("/sign-in")).form("/sign-in").fields
        fields = {**theirs, "email": person.email, "password": person.password}
        assert (await victim.post("/sign-in", fields)).status == 403
        own = (await victim.get("/sign-in")).form("/sign-in").fields
        assert (await victim.post("/sign-in", fields)).status == 403
        good = {**own, "email": person.email, "password": person.password}
        for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}):
            assert (await victim.post("/sign-in", good, **headers)).status == 403
        assert "__Host-session" not in victim.cookies
        assert (await victim.post("/sign-in", good)).status == 303


async def test_sign_out_needs_the_token_of_the_session(newcomer):
    _, browser = newcomer
    page = await browser.get("/settings")
    assert (await browser.post("/sign-out", {"form_token": "x"})).status == 403
    assert (await browser.get("/settings")).status == 200
    assert (await browser.submit(page, "/sign-out")).status == 303
    assert (await browser.get("/settings")).status == 303


async def test_session_is_new_at_each_sign_in_and_the_old_one_ends(world, person):
    base = world.env["GATEWAY_BASE_URL"]
    async with Browser(base) as victim:
        victim.cookies["__Host-session"] = "x" * 43
        page = await victim.sign_in(person.email, person.password)
        first = victim.cookies["__Host-session"]
        assert first != "x" * 43
        await victim.sign_in(person.email, person.password)
        assert victim.cookies["__Host-session"] != first
        victim.cookies["__Host-session"] = first
        assert (await victim.get("/settings")).status == 303
    [cookie] = [each for each in page.cookies if each.startswith("__Host-session=")]
    attributes = {part.strip().lower() for part in cookie.split(";")[1:]}
    assert attributes == {"path=/", "secure", "httponly", "samesite=lax"}


NEXT = (
    "https://evil.example/",
    "//evil.example/",
    "/\\evil.example/",
    "/settings@evil.example",
    "/settings/../..//evil.example",
    "/oauth/authorize?x\r\nLocation: https://evil.example",
    "javascript:alert(1)",
    "/sign-out",
)


async def test_sign_in_leads_to_no_other_site(world, person):
    async with Browser(world.env["GATEWAY_BASE_URL"]) as browser:
        for after in NEXT:
            page = await browser.sign_in(person.email, person.password, after)
            assert page.location == f"{browser.base}/", after


async def test_markup_in_names_is_shown_as_text(world):
    account = unique("markup")
    world.apply(describe_account(account, displayName=MARKUP))
    person = await make_person(world, account, displayName=MARKUP)
    async with OAuthClient(world) as client, Browser(client.base) as browser:
        await client.register(client_name=MARKUP[:100])
        await browser.sign_in(person.email, person.password)
        choice = await browser.get(client.locate(state=MARKUP, scope=f"mcp:read {MARKUP}"))
        consent = await browser.submit(choice, "/oauth/authorize", account=account)
        back = await browser.submit(consent, "/oauth/authorize", button="approve")
        assert back.parameters["state"] == MARKUP
        await client.exchange(back.parameters["code"])
        settings = await browser.get("/settings")
        roles = [{"accountName": account, "role": "owner"}]
        owner = await make_person(world, displayName=MARKUP, memberships=roles)
        async with Browser(client.base) as of_owner:
            await of_owner.sign_in(owner.email, owner.password)

            async def is_listed():
                page = await of_owner.get("/settings")
                return "Acts for" in page.text and page

            review = await wait_for(is_listed)
        failed = await browser.get(f"/oauth/authorize?{urlencode({'client_id': MARKUP})}")
        again = await browser.get(f"/sign-in?{urlencode({'next': MARKUP})}")
        refused = await browser.submit(again, "/sign-in", email=MARKUP, password="x")
    for page in (choice, consent, settings, review, failed, again, refused):
        assert "<script" not in page.body
        assert "<img" not in page.body
    assert "<script>" in choice.text


async def test_huge_and_malformed_registrations_are_refused(client):
    for body, code in (
        ({"redirect_uris": []}, "invalid_redirect_uri"),
        ({"redirect_uris": ["javascript:alert(1)"]}, "invalid_redirect_uri"),
        ({"redirect_uris": [f"https://a.example/{n}" for n in range(11)]}, "invalid_redirect_uri"),
        ({"redirect_uris": REDIRECT}, "invalid_redirect_uri"),
        ({}, "invalid_redirect_uri"),
        ([], "invalid_client_metadata"),
        ({"redirect_uris": [REDIRECT], "grant_types": ["implicit"]}, "invalid_client_metadata"),
    ):
        status, answer = await client.post("/oauth/register", json=body)
        assert (status, answer["error"]) == (400, code), body
    status, _ = await client.post("/oauth/register", json={"client_name": "x" * 1_000_000})
    assert status == 413


# accounts and users


async def test_new_password_and_suspension_end_sessions_and_tokens(client, newcomer):
    person, browser = newcomer
    tokens = await get_tokens(client, browser, person)

    async def is_signed_out():
        return (await browser.get("/settings")).status == 303

    person.apply(passwordHash=hash_password(generate_password()))
    await wait_for(is_signed_out)
    await client.verify(tokens["access_token"])
    person.apply(suspended=True)
    assert await is_dead(client, tokens["access_token"])

    async def is_refused():
        return (await client.refresh_error(tokens["refresh_token"]))[1] == "invalid_grant"

    await wait_for(is_refused)
    async with Browser(client.base) as again:
        assert (await again.sign_in(person.email, person.password)).status == 403


async def test_unknown_client_is_an_error_page_and_no_redirect(client, browser):
    for unknown in ("client_x", "client_" + "a" * 26, "x" * 9000, "http://a.example/c", ""):
        page = await browser.get(client.locate(client_id=unknown))
        assert (page.status, page.location) == (400, None), unknown
        assert page.headers["content-type"].startswith("text/html")


COOKIES = ("x" * 5000, '"\\015\\012Set-Cookie: a=b"', "a b", "a=b", "é", "")


async def test_made_up_cookies_are_nobodys_and_not_set_again(world):
    async with Browser(world.env["GATEWAY_BASE_URL"]) as browser:
        for value in COOKIES:
            browser.cookies = {"__Host-form": value, "__Host-session": value}
            page = await browser.get("/sign-in")
            assert (page.status, len(page.cookies)) == (200, 1)
            assert value == "" or value not in page.cookies[0]
            assert (await browser.get("/settings")).status == 303


async def test_consent_is_asked_again_unless_a_site_has_it_already(world, browser, person):
    account = person.accounts[0]
    async with OAuthClient(world) as site, OAuthClient(world, "cursor://a/cb") as app:
        await site.register()
        await app.register()
        for client, asks in ((site, False), (app, True)):
            await client.authorize(browser, account)

            async def is_listed(client=client):
                return client.id in world.run.kubectl("get", "gatewaygrants", "-o", "yaml")

            await wait_for(is_listed)
            choice = await browser.get(client.locate())
            page = await browser.submit(choice, "/oauth/authorize", account=account)
            assert (page.location is None) is asks
            choice = await browser.get(client.locate(prompt="consent"))
            page = await browser.submit(choice, "/oauth/authorize", account=account)
            assert page.location is None
            other = await browser.get(client.locate())
            page = await browser.submit(other, "/oauth/authorize", account=person.accounts[1])
            assert page.location is None


async def test_refusal_and_prompt_none_tell_the_client(client, browser, person):
    choice = await browser.get(client.locate())
    page = await browser.submit(choice, "/oauth/authorize", button="deny")
    assert page.parameters["error"] == "access_denied"
    assert "code" not in page.parameters
    page = await browser.get(client.locate(prompt="none"))
    assert page.parameters["error"] == "access_denied"
