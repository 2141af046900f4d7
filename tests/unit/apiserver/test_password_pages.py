"""Invitations on the console's page of members, and the page where a password is chosen."""

import re
from dataclasses import replace
from typing import cast

import pytest
from prometheus_client import CollectorRegistry

from gateway_apiserver.app import create_app
from gateway_core.mail import Mailer, MailFailed
from tests.servers.browser import Page
from tests.unit.apiserver.browsing import AppBrowser, enter, find_wrong, put_person
from tests.unit.apiserver.gateway import Gateway, call

CHOSEN = "correct horse battery"
MEMBERS = "/console/demo/members"


async def invite(browser: AppBrowser, **fields: str) -> Page:
    """The page that answers the form."""
    page = await browser.get(MEMBERS)
    given = {"email": "bea@example.com", "name": "Bea", "role": "member", **fields}
    return await browser.submit(page, f"{MEMBERS}/invite", **given)


def locate(gateway: Gateway, name: str) -> str:
    """The page of a member."""
    return f"{MEMBERS}/one?id={gateway.users.get(name).id}"


def find_token(page: Page) -> str:
    """The token of the link that a page shows."""
    found = re.findall(r"http://127\.0\.0\.1:8080/password#([\w.-]+)", page.text)
    assert len(found) == 1, page.text
    return str(found[0])


async def choose(gateway: Gateway, link: str, password: str = CHOSEN) -> tuple[AppBrowser, Page]:
    """What a new browser is answered that fills in the form as the script does."""
    browser = AppBrowser(gateway)
    page = await browser.get("/password")
    fields = {"link": link, "password": password, "repeated": password}
    return browser, await browser.submit(page, "/password", **fields)


@pytest.fixture
async def owner(gateway: Gateway) -> AppBrowser:
    put_person(gateway, "ann", demo="owner")
    return await enter(gateway, "ann")


async def test_invited_person_chooses_a_password_and_is_signed_in(
    gateway: Gateway, owner: AppBrowser
) -> None:
    shown = await invite(owner)
    assert shown.status == 200
    assert shown.headers["cache-control"] == "no-store"
    token = find_token(shown)
    listed = (await owner.get(MEMBERS)).body
    assert "invited" in listed
    assert token not in listed
    browser, done = await choose(gateway, token)
    assert (done.status, done.headers["location"]) == (303, "/")
    assert "Bea" in (await browser.get("/settings")).text
    assert "invited" not in (await owner.get(MEMBERS)).text
    assert (await choose(gateway, token, "another good phrase"))[1].status == 403
    again = AppBrowser(gateway)
    assert (await again.sign_in("bea@example.com", CHOSEN)).status == 303


async def test_refused_password_keeps_the_link_in_the_form(
    gateway: Gateway, owner: AppBrowser
) -> None:
    token = find_token(await invite(owner))
    browser, refused = await choose(gateway, token, "password1234")
    assert refused.status == 400
    assert "too easy to guess" in refused.text
    assert "password1234" not in refused.body
    assert find_wrong(refused.body) == ["new-password"]
    again = {"password": CHOSEN, "repeated": CHOSEN + "x"}
    differs = await browser.submit(refused, "/password", **again)
    assert "are not the same" in differs.text
    assert find_wrong(differs.body) == ["repeated"]
    done = await browser.submit(differs, "/password", password=CHOSEN, repeated=CHOSEN)
    assert done.status == 303


async def test_form_of_another_browser_or_site_is_refused(
    gateway: Gateway, owner: AppBrowser
) -> None:
    token = find_token(await invite(owner))
    theirs = (await AppBrowser(gateway).get("/password")).form("/password").fields
    given = {"link": token, "password": CHOSEN, "repeated": CHOSEN}
    browser = AppBrowser(gateway)
    own = (await browser.get("/password")).form("/password").fields
    assert (await browser.post("/password", {**theirs, **given})).status == 403
    crossed = await browser.post("/password", {**own, **given}, **{"Sec-Fetch-Site": "cross-site"})
    assert crossed.status == 403
    assert (await browser.post("/password", {**own, **given})).status == 303


async def test_page_loads_one_script_and_tells_nobody_its_address(gateway: Gateway) -> None:
    answer = await call(gateway.app, "GET", "/password")
    headers = dict(answer.raw_headers)
    assert headers[b"referrer-policy"] == b"no-referrer"
    assert headers[b"cache-control"] == b"no-store"
    policy = headers[b"content-security-policy"].decode()
    (script,) = re.findall(r'<script src="(/assets/link-\w+\.js)"', answer.body.decode())
    assert f"script-src http://127.0.0.1:8080{script}" in policy
    assert "form-action 'self'" in policy
    code = (await call(gateway.app, "GET", script)).body.decode()
    assert "replaceState" in code


@pytest.mark.parametrize("link", ["", "ann." + "A" * 43, "nobody." + "A" * 43, "\x00"])
async def test_unusable_links_are_answered_alike(
    gateway: Gateway, owner: AppBrowser, link: str
) -> None:
    _, page = await choose(gateway, link)
    assert page.status == 403
    assert "This link cannot be used" in page.text


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"email": "bea"}, 400),
        ({"email": "bea@example.com\r\nBcc: x@example.com"}, 400),
        ({"email": f"{'b' * 250}@example.com"}, 400),
        ({"name": "x" * 128}, 400),
        ({"role": "king"}, 400),
        ({"email": "ann@example.com"}, 409),
    ],
)
async def test_unusable_invitation_is_refused(
    owner: AppBrowser, fields: dict[str, str], status: int
) -> None:
    page = await invite(owner, **fields)
    assert page.status == status
    assert "/password#" not in page.body


@pytest.mark.parametrize("role", ["member", "viewer"])
async def test_who_may_not_appoint_may_not_invite(gateway: Gateway, role: str) -> None:
    put_person(gateway, "max", demo=role)
    put_person(gateway, "ann", demo="owner")
    browser, owner = await enter(gateway, "max"), await enter(gateway, "ann")
    for action, page in (
        ("invite", await owner.get(MEMBERS)),
        ("link", await owner.get(locate(gateway, "ann"))),
        ("remove", await owner.get(locate(gateway, "ann"))),
    ):
        path = f"{MEMBERS}/{action}"
        # the token of the owner's session, and none at all
        for fields in (page.form(path).fields, {}):
            assert (await browser.post(path, fields)).status == 403
    assert (await browser.get(locate(gateway, "ann"))).status == 403


async def test_owner_makes_a_new_link_and_removes_a_member(
    gateway: Gateway, owner: AppBrowser
) -> None:
    put_person(gateway, "max", demo="member")
    before = await enter(gateway, "max")
    path = locate(gateway, "max")
    assert f'href="{path}"' in (await owner.get(MEMBERS)).body
    page = await owner.get(path)
    shown = await owner.submit(page, f"{MEMBERS}/link")
    assert (await choose(gateway, find_token(shown)))[1].status == 303
    assert (await before.get("/settings")).status == 303
    removed = await owner.submit(page, f"{MEMBERS}/remove")
    assert removed.headers["location"] == f"{MEMBERS}?done=removed"
    assert "max@example.com" not in (await owner.get(MEMBERS)).text
    audit = (await owner.get("/console/demo/audit")).text
    assert "removed as member" in audit
    assert "link for a new password made" in audit
    page = await owner.get(locate(gateway, "ann"))
    assert (await owner.submit(page, f"{MEMBERS}/remove")).status == 409
    assert (await owner.submit(page, f"{MEMBERS}/link")).status == 403
    for unknown in ("", "x", "1"):
        assert (await owner.submit(page, f"{MEMBERS}/link", id=unknown)).status == 404
    assert (await owner.get(path)).status == 404


class FakeMailer:
    """Keeps what is sent, or refuses it."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, ...]] = []
        self.problem = ""

    async def send(self, *mail: str) -> None:
        if self.problem:
            raise MailFailed(self.problem)
        self.sent.append(mail)


@pytest.fixture
def mailer(gateway: Gateway) -> FakeMailer:
    """The mail server of the gateway's application."""
    fake = FakeMailer()
    parts = replace(gateway.api_parts, mailer=cast(Mailer, fake), registry=CollectorRegistry())
    gateway.app = create_app(parts, gateway.drain)
    return fake


async def test_link_is_mailed_and_shown(
    gateway: Gateway, mailer: FakeMailer, owner: AppBrowser
) -> None:
    shown = await invite(owner, name="Bea https://evil.example.com")
    ((account, to, subject, text),) = mailer.sent
    assert (account, to, subject) == ("demo", "bea@example.com", "Invitation to demo account")
    assert find_token(shown) in text
    assert text.count("://") == 1
    assert "was sent to bea@example.com" in shown.text


async def test_failed_mail_is_told_and_loses_no_link(
    gateway: Gateway, mailer: FakeMailer, owner: AppBrowser
) -> None:
    mailer.problem = "The mail server cannot be reached."
    shown = await invite(owner)
    assert shown.status == 200
    assert "was not sent: The mail server cannot be reached. Pass the link on" in shown.text
    assert (await choose(gateway, find_token(shown)))[1].status == 303


@pytest.mark.parametrize("gateway", [{"invitations": False}], indirect=True)
async def test_deployment_without_invitations_offers_none(
    gateway: Gateway, owner: AppBrowser
) -> None:
    page = await owner.get(locate(gateway, "ann"))
    actions = {form.action for form in [*page.forms, *(await owner.get(MEMBERS)).forms]}
    assert f"{MEMBERS}/remove" in actions
    assert not actions & {f"{MEMBERS}/invite", f"{MEMBERS}/link"}
    fields = page.form(f"{MEMBERS}/remove").fields
    assert (await owner.post(f"{MEMBERS}/invite", fields)).status in (404, 405)
