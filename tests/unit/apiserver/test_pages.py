"""Pages of the authorization server: what they tell clients, owners and people in trouble."""

from typing import Any

import pytest

from gateway_apiserver.surfaces.console.seats import CONSOLE_ALLOWANCES
from gateway_apiserver.surfaces.oauth.endpoints import OAUTH_ALLOWANCES
from gateway_apiserver.surfaces.pages import settings
from gateway_apiserver.surfaces.pages.html import SCRIPT_PATHS
from gateway_core.accounts.throttle import Allowance
from gateway_core.oauth.grants import Grants
from tests.servers.browser import Page
from tests.unit.apiserver.browsing import (
    PASSWORD,
    REDIRECT,
    AppBrowser,
    enter,
    find_wrong,
    locate,
    put_client,
    put_grant,
    put_person,
)
from tests.unit.apiserver.gateway import Gateway

BASE = "http://127.0.0.1:8080"


def list_grants(gateway: Gateway) -> list[str]:
    return sorted(obj["metadata"]["name"] for obj in gateway.kube.list_objects("gatewaygrants"))


def check_error(page: Page, code: str) -> None:
    assert page.status == 302
    given = page.parameters
    assert (given["error"], given["state"], given["iss"]) == (code, "s", BASE)
    assert "code" not in given


@pytest.mark.parametrize("signed_in", [True, False])
async def test_refused_request_leads_to_the_registered_address_and_tells_the_error_alone(
    gateway: Gateway, signed_in: bool
) -> None:
    put_person(gateway, "ann", demo="member")
    browser = await enter(gateway, "ann") if signed_in else AppBrowser(gateway)
    client = put_client(gateway)
    page = await browser.get(locate(client, code_challenge_method="plain"))
    check_error(page, "invalid_request")
    assert page.location is not None
    assert page.location.startswith(f"{REDIRECT}?")
    assert page.parameters.keys() == {"error", "error_description", "state", "iss"}
    assert page.headers["referrer-policy"] == "no-referrer"
    other = locate(client, code_challenge_method="plain", redirect_uri=f"{REDIRECT}/x")
    page = await browser.get(other)
    assert (page.status, page.location) == (400, None)


async def test_person_without_the_account_is_refused_at_the_client(gateway: Gateway) -> None:
    put_person(gateway, "bob")
    stranger = await enter(gateway, "bob")
    check_error(await stranger.get(locate(put_client(gateway))), "access_denied")
    put_person(gateway, "ann", demo="member")
    browser = await enter(gateway, "ann")
    choice = await browser.get(locate(put_client(gateway)))
    for account in ("guest", "", "none"):
        page = await browser.submit(choice, "/oauth/authorize", account=account)
        check_error(page, "access_denied")


async def test_account_that_has_not_reached_this_replica_can_be_chosen(gateway: Gateway) -> None:
    put_person(gateway, "ann", demo="member")
    browser = await enter(gateway, "ann")
    gateway.accounts.forget("demo")
    choice = await browser.get(locate(put_client(gateway)))
    assert choice.form("/oauth/authorize").fields["account"] == "demo"


@pytest.mark.parametrize("failure", ["away", "defect"])
async def test_client_gets_an_error_when_no_code_can_be_issued(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    put_person(gateway, "ann", demo="member")
    browser = await enter(gateway, "ann")
    choice = await browser.get(locate(put_client(gateway)))
    consent = await browser.submit(choice, "/oauth/authorize", account="demo")
    put = gateway.transient.put

    async def fail(*given: Any) -> None:
        if failure == "defect":
            raise RuntimeError
        with gateway.transient.away():
            await put(*given)

    monkeypatch.setattr(gateway.transient, "put", fail)
    page = await browser.submit(consent, "/oauth/authorize", button="approve")
    check_error(page, "server_error")


async def test_form_of_another_site_is_reported_to_no_client(gateway: Gateway) -> None:
    put_person(gateway, "ann", demo="member")
    browser = await enter(gateway, "ann")
    choice = await browser.get(locate(put_client(gateway)))
    page = await browser.submit(choice, "/oauth/authorize", account="demo", form_token="x")
    assert (page.status, page.location) == (403, None)


async def test_failure_of_a_page_is_shown_as_a_page(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_person(gateway, "ann", demo="member")
    browser = await enter(gateway, "ann")

    def break_down(*_: Any) -> None:
        raise RuntimeError("a detail")

    monkeypatch.setattr(Grants, "list_of", break_down)
    page = await browser.get("/settings")
    assert page.status == 500
    assert page.headers["content-type"].startswith("text/html")
    assert "frame-ancestors" in page.headers["content-security-policy"]
    assert page.headers["x-request-id"] in page.text
    assert "a detail" not in page.body


async def test_owner_reviews_and_revokes_access_of_members(gateway: Gateway) -> None:
    put_person(gateway, "ann", demo="member")
    put_person(gateway, "olga", demo="owner", guest="member")
    put_grant(gateway, "a", "ann")
    put_grant(gateway, "g", "ann", accountName="guest", clientName="Elsewhere")
    browser = await enter(gateway, "olga")
    page = await browser.get("/settings")
    assert "App of ann" in page.text
    assert "<dt>Acts for</dt><dd><bdi>ann (ann@example.com)</bdi></dd>" in page.body
    assert "Elsewhere" not in page.text
    [form] = [form for form in page.forms if "grant" in form.fields]
    assert (await browser.post(form.action, form.fields)).status == 303
    assert list_grants(gateway) == ["grant-g"]


@pytest.mark.parametrize("role", ["member", "viewer"])
async def test_members_see_their_own_access_alone(gateway: Gateway, role: str) -> None:
    put_person(gateway, "ann", demo="member")
    put_person(gateway, "mona", demo=role)
    put_grant(gateway, "a", "ann")
    put_grant(gateway, "m", "mona")
    browser = await enter(gateway, "mona")
    page = await browser.get("/settings")
    assert "App of mona" in page.text
    assert "App of ann" not in page.text
    assert "Apps of other members" not in page.text
    [form] = [form for form in page.forms if "grant" in form.fields]
    page = await browser.post(form.action, {**form.fields, "grant": "grant-a"})
    assert page.status == 403
    assert list_grants(gateway) == ["grant-a", "grant-m"]


async def test_many_grants_of_members_are_shown_in_pages(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "ON_A_PAGE", 2)
    put_person(gateway, "olga", demo="owner")
    for n in range(5):
        put_grant(gateway, f"a{n}", f"user{n}")
    browser = await enter(gateway, "olga")
    seen = set()
    for number, links in enumerate([(False, True), (True, True), (True, False)]):
        page = await browser.get(f"/settings?page={number}")
        assert ("Newer" in page.text, "Older" in page.text) == links
        seen |= {form.fields["grant"] for form in page.forms if "grant" in form.fields}
    assert seen == {f"grant-a{n}" for n in range(5)}
    assert (await browser.get("/settings?page=-1")).status == 200
    assert (await browser.get("/settings?page=x")).status == 200


async def test_grants_of_one_application_are_shown_as_one(gateway: Gateway) -> None:
    put_person(gateway, "ann", demo="member", guest="member")
    for name, spec in (("a", {}), ("b", {}), ("c", {"accountName": "guest"})):
        put_grant(gateway, name, "ann", **spec)
    browser = await enter(gateway, "ann")
    page = await browser.get("/settings")
    forms = [form for form in page.forms if "grant" in form.fields]
    assert len(forms) == 2
    for form in forms:
        await browser.post(form.action, form.fields)
    assert list_grants(gateway) == []


CHOSEN = "correct horse battery"


async def test_person_chooses_a_password_for_the_old_one(gateway: Gateway) -> None:
    put_person(gateway, "ann", demo="member")
    browser, other = await enter(gateway, "ann"), await enter(gateway, "ann")
    page = await browser.get("/settings")
    for old, chosen, repeated, status, text, wrong in (
        ("wrong", CHOSEN, CHOSEN, 403, "The current password is not right.", "old-password"),
        (PASSWORD, "short", "short", 400, "at least 12 characters", "new-password"),
        (PASSWORD, CHOSEN, CHOSEN + "x", 400, "are not the same", "repeated"),
    ):
        shown = await browser.submit(
            page, "/settings/password", password=old, chosen=chosen, repeated=repeated
        )
        assert shown.status == status
        assert text in shown.text
        assert chosen not in shown.body
        assert find_wrong(shown.body) == [wrong]
    # the address of a refused form, opened anew
    assert (await browser.get("/settings/password")).headers["location"] == "/settings"
    done = await browser.submit(
        page, "/settings/password", password=PASSWORD, chosen=CHOSEN, repeated=CHOSEN
    )
    assert (done.status, done.headers["location"]) == (303, "/settings?done=password#password")
    assert "Your password is changed." in (await browser.get("/settings?done=password")).text
    assert (await other.get("/settings")).status == 303
    again = AppBrowser(gateway)
    assert (await again.sign_in("ann@example.com", PASSWORD)).status == 403
    assert (await again.sign_in("ann@example.com", CHOSEN)).status == 303


async def test_change_of_password_needs_the_form_of_this_session(gateway: Gateway) -> None:
    put_person(gateway, "ann", demo="member")
    browser, other = await enter(gateway, "ann"), await enter(gateway, "ann")
    given = {"password": PASSWORD, "chosen": CHOSEN, "repeated": CHOSEN}
    theirs = (await other.get("/settings")).form("/settings/password").fields
    fields = {**theirs, **given}
    assert (await browser.post("/settings/password", fields)).status == 403
    own = (await browser.get("/settings")).form("/settings/password").fields
    fields = {**own, **given}
    crossed = await browser.post("/settings/password", fields, **{"Sec-Fetch-Site": "cross-site"})
    assert crossed.status == 403
    assert (await AppBrowser(gateway).post("/settings/password", fields)).status == 303


async def test_browser_is_known_after_a_sign_in(gateway: Gateway) -> None:
    put_person(gateway, "ann", demo="member")
    known, stranger = await enter(gateway, "ann"), AppBrowser(gateway)
    for _ in range(10):
        assert (await stranger.sign_in("ann@example.com", "wrong")).status == 403
    assert (await AppBrowser(gateway).sign_in("ann@example.com", PASSWORD)).status == 429
    assert (await known.sign_in("ann@example.com", PASSWORD)).status == 303


async def test_settings_and_the_start_page_are_counted_by_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert OAUTH_ALLOWANCES["settings"] == Allowance(120, 60)
    monkeypatch.setitem(OAUTH_ALLOWANCES, "settings", Allowance(4, 60))
    monkeypatch.setitem(CONSOLE_ALLOWANCES, "console", Allowance(6, 60, optional=True))
    gateway = Gateway()
    put_person(gateway, "ann", demo="member")
    first, second = [await enter(gateway, "ann") for _ in range(2)]
    for path, most, status in (("/settings", 4, 200), ("/", 6, 303)):
        for n in range(most):
            assert (await (first, second)[n % 2].get(path)).status == status
        assert (await first.get(path)).status == 429
    put_person(gateway, "bob", demo="member")
    assert (await (await enter(gateway, "bob")).get("/settings")).status == 200


async def test_settings_read_no_accounts_behind_the_page(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "ON_A_PAGE", 2)
    read = []
    list_in = Grants.list_in

    def note(grants: Grants, account: str) -> Any:
        read.append(account)
        return list_in(grants, account)

    monkeypatch.setattr(Grants, "list_in", note)
    accounts = [f"a{n}" for n in range(9)]
    for account in accounts:
        gateway.put_account(account)
        put_grant(gateway, account, "bob", accountName=account)
    put_person(gateway, "ann", **dict.fromkeys(accounts, "owner"))
    browser = await enter(gateway, "ann")
    assert (await browser.get("/settings")).text.count("App of bob") == 2
    assert read == accounts[:3]
    assert (await browser.get("/settings?page=4")).text.count("App of bob") == 1


async def test_codes_are_limited_by_user_whatever_their_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert OAUTH_ALLOWANCES["code"] == Allowance(30, 60)
    monkeypatch.setitem(OAUTH_ALLOWANCES, "code", Allowance(3, 60))
    gateway = Gateway()
    put_person(gateway, "ann", demo="member")
    browser = await enter(gateway, "ann")
    for n in range(4):
        choice = await browser.get(locate(put_client(gateway)))
        consent = await browser.submit(choice, "/oauth/authorize", account="demo")
        page = await browser.submit(consent, "/oauth/authorize", button="approve")
        if n < 3:
            assert "code" in page.parameters
    check_error(page, "server_error")


async def test_console_runs_its_own_script_alone(gateway: Gateway) -> None:
    put_person(gateway, "ann", demo="member")
    page = await (await enter(gateway, "ann")).get("/console/demo/files")
    policy = dict(
        each.strip().split(" ", 1) for each in page.headers["content-security-policy"].split(";")
    )
    assert policy["script-src"].split() == [BASE + path for path in SCRIPT_PATHS]
    for path in SCRIPT_PATHS:
        assert (await AppBrowser(gateway).get(path)).status == 200
