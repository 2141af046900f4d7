"""Forms of the console that are refused: when the one shown then is the same request again."""

import re
from typing import Any

import pytest

from gateway_apiserver.surfaces.console.inner import InnerApi
from gateway_core.api.errors import (
    Conflict,
    GatewayError,
    InvalidRequest,
    OutcomeUnknown,
    TooManyCalls,
    Unavailable,
)
from gateway_core.redis.link import CountersUnavailable
from tests.servers.browser import Form, Page
from tests.unit.apiserver.browsing import AppBrowser, enter, put_person
from tests.unit.apiserver.gateway import Gateway, call

HOME = "/console/demo"
TASK = f"{HOME}/playground/task"
LOST = OutcomeUnknown("It is not known whether this was done. Send the same again.")


@pytest.fixture
async def browser(gateway: Gateway) -> AppBrowser:
    put_person(gateway, "ann", demo="owner")
    gateway.put_model("other-one", "other")
    return await enter(gateway, "ann")


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have every operation that writes end so; the Idempotency-Keys that they were given."""

    def begin(error: GatewayError) -> list[str]:
        keys: list[str] = []

        async def write(*_: Any, key: str = "", **__: Any) -> Any:
            keys.append(key)
            raise error

        monkeypatch.setattr(InnerApi, "write", write)
        return keys

    return begin


def find_form(page: Page, action: str, operation: str | None = None) -> Form:
    (found,) = (
        form
        for form in page.forms
        if form.action == action
        and form.method == "post"
        and form.fields.get("operation") == operation
    )
    return found


@pytest.mark.parametrize(
    ("page", "action", "operation", "error"),
    [
        ("/webhooks", "/webhooks/rotate", None, LOST),
        ("/keys", "/keys", None, Unavailable("not now")),
        ("/keys", "/keys", None, TooManyCalls("too many", retry_after=1)),
        ("/playground", "/playground/task", "sim/reference_to_video", LOST),
    ],
)
async def test_form_of_unknown_outcome_is_the_same_request_when_sent_again(
    browser: AppBrowser, refuse: Any, page: str, action: str, operation: str, error: GatewayError
) -> None:
    first = find_form(await browser.get(HOME + page), HOME + action, operation)
    keys = refuse(error)
    fields = {**first.fields, "name": "one"}
    shown = await browser.post(first.action, fields)
    assert shown.status == error.status
    again = find_form(shown, first.action, operation)
    await browser.post(again.action, again.fields)
    assert keys == [first.fields["idempotency_key"]] * 2
    assert keys[0]


@pytest.mark.parametrize(
    "header", [{"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}]
)
async def test_form_that_another_site_sends_is_refused(
    browser: AppBrowser, refuse: Any, header: dict[str, str]
) -> None:
    form = find_form(await browser.get(f"{HOME}/keys"), f"{HOME}/keys")
    keys = refuse(LOST)
    assert (await browser.post(form.action, {**form.fields, "name": "one"}, **header)).status == 403
    assert not keys


@pytest.mark.parametrize("error", [InvalidRequest("no"), Conflict("no")])
async def test_form_that_was_not_carried_out_is_a_new_request(
    browser: AppBrowser, refuse: Any, error: GatewayError
) -> None:
    first = find_form(await browser.get(f"{HOME}/keys"), f"{HOME}/keys")
    refuse(error)
    again = find_form(await browser.post(first.action, first.fields), first.action)
    assert again.fields["idempotency_key"] != first.fields["idempotency_key"]


async def test_task_that_is_sent_again_leaves_forms_of_other_operations_alone(
    browser: AppBrowser, refuse: Any
) -> None:
    operations = "sim/reference_to_video", "other/reference_to_video"
    page = await browser.get(f"{HOME}/playground")
    first, other = (find_form(page, TASK, operation) for operation in operations)
    refuse(LOST)
    shown = await browser.post(TASK, {**first.fields, "prompt": "a cat"})
    keys = [find_form(shown, TASK, name).fields["idempotency_key"] for name in operations]
    assert keys[0] == first.fields["idempotency_key"]
    assert keys[1] not in (keys[0], other.fields["idempotency_key"])
    assert shown.text.count("a cat") == 1


async def test_form_can_be_sent_again_where_its_page_cannot_be_read(
    browser: AppBrowser, refuse: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = find_form(await browser.get(f"{HOME}/webhooks"), f"{HOME}/webhooks/rotate")
    keys = refuse(LOST)

    async def read(*_: Any, **__: Any) -> Any:
        raise Unavailable("not now")

    monkeypatch.setattr(InnerApi, "read", read)
    shown = await browser.post(first.action, first.fields)
    await browser.submit(shown, first.action)
    assert keys == [first.fields["idempotency_key"]] * 2


async def test_without_redis_a_signed_in_person_reads_what_cannot_be_done(
    gateway: Gateway, browser: AppBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = find_form(await browser.get(f"{HOME}/webhooks"), f"{HOME}/webhooks/test")
    fields = {**test.fields, "url": "https://example.com/hook"}
    with gateway.transient.away():
        shown = await browser.post(test.action, fields)
    assert shown.status == 503
    assert "Your session cannot be read now." in shown.text

    count = gateway.transient.count

    async def count_no_tests(name: str, seconds: int) -> tuple[int, int]:
        if "/webhook-test/" in name:
            raise CountersUnavailable("away")
        return await count(name, seconds)

    monkeypatch.setattr(gateway.transient, "count", count_no_tests)
    shown = await browser.post(test.action, fields)
    assert shown.status == 503
    assert "A test delivery is not possible now." in shown.text


async def test_region_is_sent_with_nosniff(gateway: Gateway, browser: AppBrowser) -> None:
    cookies = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    target = [("hx-request", "true"), ("hx-target", "region"), ("cookie", cookies)]
    region = await call(gateway.app, "GET", f"{HOME}/batches", headers=target)
    assert region.body.startswith(b'<div id="region"')
    assert region.headers["x-content-type-options"] == "nosniff"


async def test_unknown_address_shows_a_404_page_with_the_navigation(browser: AppBrowser) -> None:
    for path in ("/nothing", "/keys/key_a/nothing"):
        shown = await browser.get(HOME + path)
        assert shown.status == 404
        assert "There is no such page." in shown.text
        assert "Playground" in shown.text


async def test_playground_shows_what_models_cost(gateway: Gateway, browser: AppBrowser) -> None:
    tier = {"abovePromptTokens": 200_000, "inputPerMillionMicros": 2_500_000}
    price = {"inputPerMillionMicros": 1_250_000, "tiers": [tier]}
    gateway.put_model("long", service="sim", action="chat", prices=[price])
    gateway.put_model("gratis", service="sim", action="chat", prices=[{"perCallMicros": 0}])
    shown = (await browser.get(f"{HOME}/playground")).text
    assert "1.25 a million input tokens; above 200,000 prompt tokens: 2.50 a million" in shown
    assert "0.10 a second" in shown
    assert "free" in shown


async def make_key(browser: AppBrowser, once: str) -> tuple[str, Page]:
    """The id of the key that a form of this Idempotency-Key made, and the page that answers."""
    form = find_form(await browser.get(f"{HOME}/keys"), f"{HOME}/keys")
    page = await browser.post(form.action, {**form.fields, "name": "one", "idempotency_key": once})
    listed = await browser.get(f"{HOME}/keys")
    found = re.search(r"key_[a-z0-9]+", listed.body)
    return ("" if found is None else found.group()), page


@pytest.mark.parametrize("role", ["member", "admin"])
async def test_member_is_not_shown_a_key_that_another_user_made_by_the_same_request(
    gateway: Gateway, browser: AppBrowser, role: str
) -> None:
    await make_key(browser, "once")
    put_person(gateway, "bob", demo=role)
    _, page = await make_key(await enter(gateway, "bob"), "once")
    assert page.status == (409 if role == "member" else 200)


@pytest.mark.parametrize(
    ("word", "field", "value"),
    [
        ("rotate", "overlap_seconds", "\N{SUPERSCRIPT TWO}"),
        ("rotate", "overlap_seconds", "9" * 30),
        ("rotate", "overlap_seconds", "9" * 5000),
        ("change", "rpm_limit", "\N{SUPERSCRIPT TWO}"),
        ("change", "limit", "1e999999999"),
    ],
)
async def test_field_without_a_usable_number_is_named(
    browser: AppBrowser, word: str, field: str, value: str
) -> None:
    key_id, _ = await make_key(browser, "once")
    path = f"{HOME}/keys/{key_id}"
    form = find_form(await browser.get(path), f"{path}/{word}")
    shown = await browser.post(form.action, {**form.fields, field: value})
    assert shown.status == 400
    assert f'-{field}-problem">' in shown.body
    assert f"{field}:" not in shown.text
