"""The pages in real Chromium: the whole flow, by keyboard, narrow, in the dark, without scripts."""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from playwright.async_api import Browser as Chromium
from playwright.async_api import Page, async_playwright, expect
from tools.programs import find_program

from gateway_cli.local.certificates import write_cluster_keys
from tests.integration.oauth.conftest import make_person
from tests.integration.oauth.flows import OAuthClient
from tests.servers.browser import Browser

pytestmark = pytest.mark.full

SCREENSHOTS = os.environ.get("GATEWAY_TEST_SCREENSHOTS")
"""A folder for pictures of all pages, to be looked at."""


@pytest.fixture
async def chromium() -> AsyncIterator[Chromium]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=find_program("chromium"),
            # Chromium has no sandbox for root
            args=["--no-sandbox"] if os.geteuid() == 0 else [],
        )
        yield browser
        await browser.close()


async def open_page(chromium: Chromium, **options: Any) -> Page:
    """A page of a new profile; what its console reports is a failure."""
    context = await chromium.new_context(**options)
    page = await context.new_page()
    page.complaints = []
    page.on("console", lambda message: page.complaints.append(message.text))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    return page


@asynccontextmanager
async def serve_redirects(
    host: str, onward: str, tls: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """The port of a client's program; it sends requests on, but for those of `/end`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path, _, query = (await reader.readuntil(b"\r\n\r\n")).decode().split()[1].partition("?")
        is_end = path == "/end" or not onward
        answer = "200 OK" if is_end else f"302 Found\r\nLocation: {onward}?{query}"
        answer = answer.replace("{port}", str(writer.get_extra_info("sockname")[1]))
        text = f"HTTP/1.1 {answer}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        writer.write(text.encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, host, 0, ssl=tls)
    yield server.sockets[0].getsockname()[1]
    server.close()


@pytest.fixture
async def callback() -> AsyncIterator[str]:
    """The redirect URI of a program on this machine, which sends on to a page of another origin."""
    async with serve_redirects("127.0.0.1", "http://localhost:{port}/end") as port:
        yield f"http://127.0.0.1:{port}/callback"


async def picture(page: Page, name: str) -> None:
    if SCREENSHOTS:
        Path(SCREENSHOTS).mkdir(parents=True, exist_ok=True)
        await page.screenshot(path=f"{SCREENSHOTS}/{name}.png", full_page=True)


async def check_fits(page: Page) -> None:
    """Nothing is wider than the screen, and every control has a name."""
    wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    assert not await page.evaluate(wide)
    unnamed = """[...document.querySelectorAll('input:not([type=hidden]), button')].filter(
        e => !(e.labels?.length || e.textContent.trim() || e.ariaLabel)).length"""
    assert await page.evaluate(unnamed) == 0
    assert await page.evaluate("document.querySelectorAll('h1').length") == 1
    assert await page.evaluate("document.documentElement.lang") == "en"


async def read_contrast(page: Page, selector: str) -> float:
    """The contrast (WCAG) of an element's text on the first background behind it."""
    return await page.evaluate(
        """selector => {
          const e = document.querySelector(selector);
          const parse = c => c.match(/[\\d.]+/g).map(Number);
          let b = e, ground;
          do { ground = parse(getComputedStyle(b).backgroundColor); b = b.parentElement; }
          while (b && ground.length > 3 && ground[3] === 0);
          const light = c => { const [r, g, b] = c.slice(0, 3).map(v => {
            v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
            return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
          const [x, y] = [light(parse(getComputedStyle(e).color)), light(ground)].sort();
          return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
        }""",
        selector,
    )


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dark", {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"}),
        ("narrow", {"viewport": {"width": 320, "height": 640}}),
    ],
)
async def test_user_signs_in_allows_reviews_and_revokes(
    world, chromium, callback, own_accounts, name, options
):
    person = await make_person(world, *own_accounts)
    async with OAuthClient(world, "http://127.0.0.1/callback") as client:
        await client.register(client_name="Ann's editor")
        client.redirect = callback
        page = await open_page(chromium, **options)
        await page.goto(client.base + client.locate())
        await expect(page).to_have_title("Sign in | Model Gateway")
        await check_fits(page)
        await picture(page, f"{name}-sign-in")
        await page.get_by_label("Email address").fill(person.email)
        await page.get_by_label("Password").fill("wrong")
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("alert")).to_contain_text("is not right")
        await expect(page.get_by_label("Email address")).to_have_value(person.email)
        await picture(page, f"{name}-sign-in-refused")
        await page.get_by_label("Password").fill(person.password)
        await page.get_by_role("button", name="Sign in").click()

        await expect(page.get_by_role("heading", level=1)).to_have_text("Choose an account")
        await check_fits(page)
        await picture(page, f"{name}-account")
        await page.get_by_label(f"Account {person.accounts[1]}").check()
        await page.get_by_role("button", name="Continue").click()

        await expect(page.get_by_role("heading", level=1)).to_have_text("Allow access?")
        main = page.get_by_role("main")
        for text in (
            "Ann's editor",
            urlsplit(callback).netloc,
            person.accounts[1],
            "Create tasks.",
        ):
            await expect(main).to_contain_text(text)
        await expect(main).to_contain_text("a program on your own computer")
        await check_fits(page)
        for selector in ("h1", "dt", ".hint", ".notice", "button[value=approve]"):
            assert await read_contrast(page, selector) >= 4.5, selector
        await picture(page, f"{name}-consent")
        await page.get_by_role("button", name="Allow").click()
        await page.wait_for_url("http://localhost:*/end?**")
        back = dict(parse_qsl(urlsplit(page.url).query))
        assert (back["state"], back["iss"]) == ("a state", client.base)
        status, tokens = await client.exchange(back["code"])
        assert status == 200
        caller = await client.verify(tokens["access_token"])
        assert caller.principal.account.name == person.accounts[1]

        await page.goto(f"{client.base}/settings#oauth-connections")
        section = page.get_by_role("region", name="Authorized apps")
        await expect(section).to_contain_text("Ann's editor")
        await expect(section).to_contain_text("never")
        await check_fits(page)
        await picture(page, f"{name}-settings")
        await page.get_by_role("button", name="Revoke the access of Ann's editor").click()
        await page.wait_for_url(f"{client.base}/settings#oauth-connections")
        for _ in range(40):
            if await section.get_by_text("No application has access.").count():
                break
            await page.wait_for_timeout(50)
            await page.reload()
        await picture(page, f"{name}-settings-empty")
        assert await client.refresh_error(tokens["refresh_token"]) == (400, "invalid_grant")
        await page.get_by_role("button", name="Sign out").click()
        await expect(page).to_have_title("Sign in | Model Gateway")
        # the answer to the wrong password
        assert all("403" in complaint for complaint in page.complaints), page.complaints


@pytest.mark.parametrize("width", [1280, 320])
async def test_owner_reviews_access_and_changes_the_password(
    world, chromium, client, browser, person, width
):
    account = person.accounts[0]
    await client.authorize(browser, account)
    roles = [{"accountName": account, "role": "owner"}]
    owner = await make_person(world, account, memberships=roles)
    page = await open_page(chromium, viewport={"width": width, "height": 900})
    await page.goto(f"{client.base}/sign-in")
    await page.get_by_label("Email address").fill(owner.email)
    await page.get_by_label("Password").fill(owner.password)
    await page.get_by_role("button", name="Sign in").click()
    await page.goto(f"{client.base}/settings")
    others = page.get_by_role("region", name="Apps of other members")
    for _ in range(100):
        if await others.get_by_text(person.name).count():
            break
        await page.wait_for_timeout(50)
        await page.reload()
    await expect(others).to_contain_text("Test client")
    await check_fits(page)
    await picture(page, f"{width}-owner")
    name = f"for {person.name}"
    await others.get_by_role("button", name=name).first.click()
    await page.wait_for_url(f"{client.base}/settings#oauth-connections")
    await page.get_by_label("Current password").fill(owner.password)
    chosen = "correct horse battery"
    await page.get_by_label("New password", exact=True).fill(chosen)
    await page.get_by_label("Repeat the new password").fill(chosen)
    await page.get_by_role("button", name="Change the password").click()
    await expect(page.get_by_role("status")).to_have_text("Your password is changed.")
    await check_fits(page)
    await picture(page, f"{width}-new-password")
    async with Browser(client.base) as again:
        assert (await again.sign_in(owner.email, chosen)).status == 303
    assert page.complaints == []


async def test_whole_flow_by_keyboard(world, chromium, callback, person):
    async with OAuthClient(world, callback) as client:
        await client.register()
        page = await open_page(chromium)
        await page.goto(client.base + client.locate())
        await expect(page.get_by_label("Email address")).to_be_focused()
        await page.keyboard.type(person.email)
        await page.keyboard.press("Tab")
        await page.keyboard.type(person.password)
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", level=1)).to_have_text("Choose an account")
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
        await page.keyboard.press("Enter")
        await page.keyboard.press("Tab")
        await page.keyboard.press("ArrowDown")
        await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", level=1)).to_have_text("Allow access?")
        allow = page.get_by_role("button", name="Allow")
        for _ in range(6):
            await page.keyboard.press("Tab")
            if await allow.evaluate("e => e === document.activeElement"):
                break
        outline = "e => getComputedStyle(e).outlineStyle"
        assert await allow.evaluate(outline) == "solid"
        await page.keyboard.press("Enter")
        await page.wait_for_url("http://localhost:*/end?**")
        assert "code=" in page.url


async def sign_in(page: Page, client: OAuthClient, person: Any) -> None:
    """Go to the authorization and sign in there."""
    await page.goto(client.base + client.locate())
    await page.get_by_label("Email address").fill(person.email)
    await page.get_by_label("Password").fill(person.password)
    await page.get_by_role("button", name="Sign in").click()


OWN_SCHEME = "com.example.app:/end"


@pytest.mark.parametrize(
    ("redirect", "onward"),
    [
        (OWN_SCHEME, ""),
        ("http://[::1]:{port}/end", ""),
        ("http://127.0.0.1:{port}/callback", OWN_SCHEME),
        ("http://127.0.0.1:{port}/callback", "http://[::1]:{port}/end"),
        ("https://localhost:{port}/callback", OWN_SCHEME),
    ],
)
async def test_flow_ends_at_the_client_wherever_its_redirects_lead(
    world, chromium, person, tmp_path, redirect, onward
):
    tls = None
    if redirect.startswith("https:"):
        keys = write_cluster_keys(tmp_path)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(keys.certificate, keys.key)
    host = "::1" if "[::1]" in redirect else "127.0.0.1"
    async with (
        serve_redirects(host, onward, tls) as port,
        OAuthClient(world, redirect.format(port=port)) as client,
    ):
        await client.register()
        end = (onward or redirect).format(port=port)
        for button, parameter in (("Refuse", "error"), ("Allow", "code")):
            # a page of its own: Chromium may ignore a second link to another application
            page = await open_page(chromium, ignore_https_errors=True)
            await sign_in(page, client, person)
            await page.get_by_role("button", name="Continue").click()
            async with page.expect_request(lambda request: request.url.startswith(end)) as seen:
                await page.get_by_role("button", name=button).click()
            given = dict(parse_qsl(urlsplit((await seen.value).url).query))
            assert given[parameter]
            assert page.complaints == []
        assert (await client.exchange(given["code"]))[0] == 200


async def test_form_of_another_site_is_refused(world, chromium, person):
    base = world.env["GATEWAY_BASE_URL"]
    page = await open_page(chromium)
    await page.goto(f"{base}/sign-in?next=/settings")
    await page.get_by_label("Email address").fill(person.email)
    await page.get_by_label("Password").fill(person.password)
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Settings")
    form = f'<form method="post" action="{base}/sign-out"><button>Go</button></form>'
    evil = "http://evil.example/"
    await page.route(evil, lambda route: route.fulfill(body=form, content_type="text/html"))
    await page.goto(evil)
    await page.get_by_role("button", name="Go").click()
    await page.wait_for_url(f"{base}/sign-out")
    await picture(page, "light-error")
    await page.goto(f"{base}/settings")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Settings")
