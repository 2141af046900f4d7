"""Forms of the console that offer what the account has by name, and figures that add up."""

import re
from html import unescape

import pytest

from gateway_apiserver.surfaces.console.choices import MOST_OPTIONS
from gateway_core.accounts.sign_in import USERS
from gateway_core.billing.counters import Spending
from gateway_core.kube.kinds import KEYS
from tests.servers.browser import Page
from tests.unit.apiserver.browsing import AppBrowser, enter, put_person
from tests.unit.apiserver.gateway import MODEL, Gateway

HOME = "/console/demo"
KEY = {"accountName": "demo", "class": "Standard", "tokens": []}


@pytest.fixture
async def browser(gateway: Gateway) -> AppBrowser:
    put_person(gateway, "ann", demo="owner")
    return await enter(gateway, "ann")


def put_key(gateway: Gateway, name: str, shown: str, **more: object) -> None:
    gateway.kube.put(
        KEYS.plural, {"metadata": {"name": name}, "spec": {**KEY, "displayName": shown, **more}}
    )


def read_choices(page: Page, action: str, name: str, method: str = "post") -> dict[str, str]:
    """Values and texts of a choice in a form."""
    begin = re.search(rf'<form[^>]*method="{method}" action="{action}"', page.body)
    assert begin is not None
    form = page.body[begin.start() :].partition("</form>")[0]
    found = re.search(rf'<select[^>]*name="{name}"[^>]*>(.*?)</select>', form, re.DOTALL)
    if found is None:
        return {}
    options = re.findall(r'<option value="([^"]*)"[^>]*>(.*?)</option>', found[1])
    return {unescape(value): unescape(text) for value, text in options}


async def test_tasks_are_filtered_by_the_name_of_a_key_and_by_models_of_the_gateway(
    gateway: Gateway, browser: AppBrowser
) -> None:
    put_key(gateway, "key-ci", "CI server")
    gateway.put_model("talker", action="chat", prices=[{"perCallMicros": 0}])
    gateway.put_task("task_ci", keyName="key-ci")
    gateway.put_task("task_ann", keyName="session-ann")
    page = await browser.get(f"{HOME}/tasks")
    choices = read_choices(page, f"{HOME}/tasks", "key", "get")
    assert choices[""] == "Any"
    assert choices["key_ci"] == "CI server (key_ci)"
    assert choices["session_ann"] == "Playground (your tasks)"
    assert f'<option value="{MODEL}">' in page.body
    assert '<option value="talker">' not in page.body
    for key, task in (("key_ci", "task_ci"), ("session_ann", "task_ann")):
        text = (await browser.get(f"{HOME}/tasks?key={key}")).text
        assert [name for name in ("task_ci", "task_ann") if f"Task{name}Model" in text] == [task]
    # a key that is there no more
    page = await browser.get(f"{HOME}/tasks?key=key_gone")
    assert read_choices(page, f"{HOME}/tasks", "key", "get")["key_gone"] == "key_gone"


@pytest.mark.parametrize(
    ("role", "expected"),
    [("member", {"", "session_mia", "key_own"}), ("viewer", set())],
)
async def test_filter_offers_only_keys_that_the_role_governs(
    gateway: Gateway, role: str, expected: set[str]
) -> None:
    put_person(gateway, "mia", demo=role)
    put_key(gateway, "key-own", "own", createdBy="mia")
    put_key(gateway, "key-other", "other", createdBy="ann")
    page = await (await enter(gateway, "mia")).get(f"{HOME}/tasks")
    assert read_choices(page, f"{HOME}/tasks", "key", "get").keys() == expected


async def test_filter_takes_an_id_where_there_are_very_many_keys(
    gateway: Gateway, browser: AppBrowser
) -> None:
    for number in range(MOST_OPTIONS + 1):
        put_key(gateway, f"key-{number}", "one")
    page = await browser.get(f"{HOME}/tasks?key=key_7")
    assert re.search(r'<input [^>]*name="key" type="search" value="key_7"', page.body)
    assert "Key id" in page.text


async def test_guardrail_offers_keys_by_name_for_assignment_and_removal(
    gateway: Gateway, browser: AppBrowser
) -> None:
    put_key(gateway, "key-in", "inside")
    put_key(gateway, "key-out", "outside")
    put_key(gateway, "key-gone", "gone", revoked=True)
    gateway.kube.put(
        "gatewayguardrails",
        {
            "metadata": {"name": "grd-a"},
            "spec": {"accountName": "demo", "displayName": "g", "keyNames": ["key-in"]},
        },
    )
    path = f"{HOME}/guardrails/grd_a"
    page = await browser.get(path)
    assign = read_choices(page, f"{path}/assign", "key_id")
    assert assign["key_out"] == "outside (key_out)"
    assert not {"key_in", "key_gone"} & assign.keys()
    assert read_choices(page, f"{path}/remove", "key_id") == {"key_in": "inside (key_in)"}
    answer = await browser.submit(page, f"{path}/assign", key_id="key_out")
    assert answer.status == 303
    assert "key_out" in read_choices(await browser.get(path), f"{path}/remove", "key_id")


async def test_role_is_changed_on_the_page_of_a_member(
    gateway: Gateway, browser: AppBrowser
) -> None:
    put_person(gateway, "mia", demo="viewer")
    listed = await browser.get(f"{HOME}/members")
    found = re.search(rf'href="({HOME}/members/one\?id=\d+)"[^>]*><bdi>mia', listed.body)
    assert found is not None
    page = await browser.get(found[1])
    choices = read_choices(page, re.escape(found[1]), "role")
    assert choices.keys() == {"owner", "admin", "member", "viewer"}
    assert '<option value="viewer" selected>' in page.body
    answer = await browser.submit(page, found[1], role="admin")
    assert answer.location is not None
    after = await browser.get(answer.location)
    assert "The changes are saved." in after.text
    assert '<option value="admin" selected>' in after.body
    (spec,) = (
        obj["spec"]
        for obj in gateway.kube.list_objects(USERS.plural)
        if obj["metadata"]["name"] == "mia"
    )
    assert spec["memberships"] == [{"accountName": "demo", "role": "admin"}]


async def test_admin_is_offered_no_changes_of_an_owner(
    gateway: Gateway, browser: AppBrowser
) -> None:
    put_person(gateway, "otto", demo="admin")
    admin = await enter(gateway, "otto")
    listed = await admin.get(f"{HOME}/members")
    found = re.search(rf'href="({HOME}/members/one\?id=\d+)"[^>]*><bdi>ann', listed.body)
    assert found is not None
    page = await admin.get(found[1])
    assert "Only an owner may change or remove an owner." in page.text
    assert not [form for form in page.forms if form.action.startswith(HOME)]
    people = read_choices(listed, f"{HOME}/members", "id")
    assert [name.partition(" ")[0] for name in people.values()] == ["otto"]


async def test_reservation_is_shown_only_while_it_is_held(
    gateway: Gateway, browser: AppBrowser
) -> None:
    gateway.put_task("task_a", status={"phase": "Running", "reservedMicros": 300_000})
    assert "Reserved$0.30" in (await browser.get(f"{HOME}/tasks/task_a")).text.replace(" ", "")
    status = {"phase": "Completed", "reservedMicros": 300_000, "chargedMicros": 180_000}
    gateway.put_task("task_b", status={**status, "result": {"videos": []}})
    assert "Reserved" not in (await browser.get(f"{HOME}/tasks/task_b")).text


async def test_keys_page_of_a_member_without_keys_says_whose_are_missing(gateway: Gateway) -> None:
    put_person(gateway, "mia", demo="member")
    text = (await (await enter(gateway, "mia")).get(f"{HOME}/keys")).text
    assert "You have no keys yet." in text


@pytest.mark.parametrize(
    "path", [f"{HOME}/", f"{HOME}/tasks/?status=failed", "/settings/", "/sign-in/"]
)
async def test_slash_at_the_end_is_another_path(browser: AppBrowser, path: str) -> None:
    assert (await browser.get(path)).status == 404


async def test_address_of_a_refused_upload_leads_to_the_files(browser: AppBrowser) -> None:
    answer = await browser.get(f"{HOME}/files/upload?form_token=old")
    assert answer.status == 303
    assert (answer.location or "").endswith(f"{HOME}/files")


async def test_spending_and_balance_add_up_to_the_funds(
    gateway: Gateway, browser: AppBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.put_account("demo", funds={"paidMicros": 10_000_000})

    async def read_spending(*_: object) -> Spending:
        return Spending(charged=13, held=300_000, charged_today=13)

    monkeypatch.setattr(gateway.counters, "read_spending", read_spending)
    text = (await browser.get(f"{HOME}/usage")).text.replace(" ", "")
    for figure in ("Balance$9.699987", "Reserved$0.30", "Totalspent$0.000013", "Totalpaidin$10.00"):
        assert figure in text
    overview = (await browser.get(HOME)).text
    assert "$9.699987" in overview
    assert "$0.30 more is reserved for work under way" in overview


async def test_page_that_is_not_there_says_so_in_its_title(browser: AppBrowser) -> None:
    for path in ("/nosuch", "/tasks/task_x"):
        page = await browser.get(HOME + path)
        assert page.status == 404
        assert "Not found" in page.text
        assert "not possible" not in page.text
