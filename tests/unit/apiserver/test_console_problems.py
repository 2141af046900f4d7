"""Refused forms of the console: the control, its label and the problem in the page's words."""

import re
from collections.abc import Mapping
from html import unescape

import pytest

from gateway_apiserver.surfaces.console.parts import Field
from gateway_apiserver.surfaces.console.problems import explain
from gateway_core.api.errors import Conflict, GatewayError, InvalidRequest, NotFound
from tests.servers.browser import Page
from tests.unit.apiserver.browsing import AppBrowser, enter, put_person
from tests.unit.apiserver.gateway import MODEL, Gateway

HOME = "/console/demo"
FIELDS = [
    Field("limit", "Limit in dollars", param="limit_cents"),
    Field("limit_window", "Window"),
    Field("allowed_models", "Allowed models", items=("entry", "entries")),
    Field("key_id", "Key id", param="key_ids"),
    Field("model", "Model"),
    Field("message", "Message", param="messages"),
    Field("input_file_id", "File id"),
]
_CONTROL = re.compile(r"<(?:input|select|textarea)\b[^>]*>")
_LABEL = re.compile(r"<label[^>]* for=\"([^\"]+)\"[^>]*>(.*?)</label>", re.DOTALL)
_PROBLEM = re.compile(r"<small class=\"wrong\" id=\"([^\"]+)-problem\">(.*?)</small>", re.DOTALL)


def find_marked(page: Page) -> Mapping[str, str]:
    """The problems of a page by label; the first of its controls has the keyboard."""
    labels = {id_: re.sub(r"<.*?>", "", text).strip() for id_, text in _LABEL.findall(page.body)}
    problems = {id_: unescape(text) for id_, text in _PROBLEM.findall(page.body)}
    controls = [tag for tag in _CONTROL.findall(page.body) if 'aria-invalid="true"' in tag]
    assert [" autofocus" in tag for tag in controls] == [True, *[False] * (len(controls) - 1)]
    found = {}
    for tag in controls:
        (id_,) = re.findall(r' id="([^"]+)"', tag)
        (described,) = re.findall(r' aria-describedby="([^"]+)"', tag)
        assert described.split()[0] == f"{id_}-problem"
        found[labels[id_]] = problems.pop(id_)
    assert not problems
    return found


@pytest.fixture
async def browser(gateway: Gateway) -> AppBrowser:
    gateway.put_model("talker", action="chat", prices=[{"perCallMicros": 0}])
    put_person(gateway, "ann", demo="owner")
    return await enter(gateway, "ann")


async def make(browser: AppBrowser, noun: str) -> str:
    """The address of a new key or guardrail."""
    page = await browser.get(f"{HOME}/{noun}")
    await browser.submit(page, f"{HOME}/{noun}", name="one")
    listed = await browser.get(f"{HOME}/{noun}")
    found = re.search(rf'href="({HOME}/{noun}/[^"]+)"', listed.body)
    assert found is not None
    return found[1]


NOT_ABSOLUTE = "must be an absolute http or https URL."


@pytest.mark.parametrize(
    ("page", "action", "values", "marked"),
    [
        (
            "/keys",
            "/keys",
            {"name": "one", "limit": "5"},
            {"Window": "Window is required with “Limit in dollars”."},
        ),
        (
            "/keys",
            "/keys",
            {"name": "one", "limit_window": "daily"},
            {"Limit in dollars": "Limit in dollars is required with “Window”."},
        ),
        (
            "/keys",
            "/keys",
            {"name": " ", "rpm_limit": "0", "allowed_models": "a b*c"},
            {
                "Name": "Name must not be blank.",
                "Calls a minute": "Calls a minute must be at least 1.",
                "Allowed models": "Allowed models: entry 2 may have a * at its end only.",
            },
        ),
        (
            "/keys",
            "/keys",
            {"name": "one", "expires_at": "soon"},
            {"Expires on": "Expires on must be a date of the year 2000 or later."},
        ),
        (
            "/keys",
            "/keys",
            {"name": "one", "expires_at": "2020-01-01"},
            {"Expires on": "Expires on must be a day after today."},
        ),
        ("/keys", "/keys", {"name": ""}, {"Name": "Name must not be empty."}),
        (
            "/guardrails",
            "/guardrails",
            {"name": "one", "denied_models": "a " * 65},
            {"Denied models": "Denied models must have at most 64 entries."},
        ),
        (
            "/guardrails",
            "/guardrails",
            {"name": "one", "denied_providers": "é"},
            {
                "Denied providers": "Denied providers: entry 1 must have printable ASCII"
                " characters only."
            },
        ),
        (
            "/playground",
            "/playground/task",
            {
                "model": MODEL,
                "prompt": "a cat",
                "reference_image_urls": "https://example.com/a\nb",
                "duration_seconds": "999",
                "callback_url": "b",
            },
            {
                "Reference image URLs": f"Reference image URLs: address 2 {NOT_ABSOLUTE}",
                "Duration seconds": "Duration seconds must be 3 to 16.",
                "Callback URL": f"Callback URL {NOT_ABSOLUTE}",
            },
        ),
        (
            "/playground",
            "/playground/task",
            {
                "model": MODEL,
                "prompt": "a",
                "reference_image_urls": "x:y",
                "duration_seconds": "one",
            },
            {
                "Reference image URLs": f"Reference image URLs: address 1 {NOT_ABSOLUTE}",
                "Duration seconds": "Duration seconds must be a whole number.",
            },
        ),
        (
            "/keys",
            "/keys",
            {"name": " ", "limit": "x", "limit_window": "daily", "rpm_limit": "y"}
            | {"expires_at": "soon", "allowed_providers": "é"},
            {
                "Name": "Name must not be blank.",
                "Limit in dollars": "Limit in dollars must be an amount in dollars.",
                "Calls a minute": "Calls a minute must be a whole number.",
                "Allowed providers": "Allowed providers: entry 1 must have printable ASCII"
                " characters only.",
                "Expires on": "Expires on must be a date of the year 2000 or later.",
            },
        ),
        (
            "/playground",
            "/playground/chat",
            {"message": " "},
            {"Message": "Message is required."},
        ),
        (
            "/batches",
            "/batches",
            {"input_file_id": "file_x"},
            {"File id": "There is no such file."},
        ),
        (
            "/webhooks",
            "/webhooks/test",
            {"url": "ftp://example.com"},
            {"Address": "Address must be an http or https URL."},
        ),
        (
            "/webhooks",
            "/webhooks/test",
            {"url": "https://ann:secret@example.com/"},
            {"Address": "Address must not name a user."},
        ),
        (
            "/members",
            "/members/invite",
            {"email": "ann@example.com", "role": "member"},
            {"Email address": "This person is a member already: ann (ann@example.com)."},
        ),
    ],
)
async def test_refused_form_marks_its_controls_in_the_words_of_the_page(
    browser: AppBrowser, page: str, action: str, values: dict[str, str], marked: dict[str, str]
) -> None:
    first = await browser.get(HOME + page)
    shown = await browser.submit(first, HOME + action, **values)
    assert shown.status in (400, 404, 409)
    assert find_marked(shown) == marked


async def test_change_of_a_key_marks_its_controls(browser: AppBrowser) -> None:
    path = await make(browser, "keys")
    page = await browser.get(path)
    shown = await browser.submit(page, f"{path}/change", limit="1.005", limit_window="daily")
    text = "Limit in dollars must be an amount in whole cents."
    assert find_marked(shown) == {"Limit in dollars": text}
    shown = await browser.submit(page, f"{path}/rotate", overlap_seconds="9999999")
    assert list(find_marked(shown)) == ["The old secret ends"]


async def test_taken_name_of_a_guardrail_is_marked(browser: AppBrowser) -> None:
    await make(browser, "guardrails")
    page = await browser.get(f"{HOME}/guardrails")
    shown = await browser.submit(page, f"{HOME}/guardrails", name="one")
    assert find_marked(shown) == {"Name": "A guardrail called one is there already."}


async def test_key_that_is_unknown_is_marked_in_the_form_that_was_sent(browser: AppBrowser) -> None:
    path = await make(browser, "guardrails")
    own, other = await make(browser, "keys"), await make(browser, "keys")
    await browser.submit(await browser.get(path), f"{path}/assign", key_id=own.rpartition("/")[2])
    page = await browser.get(path)
    assert f'value="{other.rpartition("/")[2]}"' in page.body
    for word in ("assign", "remove"):
        shown = await browser.submit(page, f"{path}/{word}", key_id="key_x")
        assert find_marked(shown) == {"Key": "Key not found."}


@pytest.mark.parametrize(
    ("page", "label"),
    [
        ("/tasks?key=a%20b", "Key"),
        ("/tasks?model=%20a%20b", "Model"),
        ("/tasks?status=odd", "State"),
        ("/keys?status=odd", "State"),
        ("/files?purpose=odd", "Purpose"),
        ("/usage?start=2026-01-02&end=2026-01-01", "From"),
        ("/usage?start=soon", "From"),
    ],
)
async def test_wrong_filter_is_marked_above_the_list(
    browser: AppBrowser, page: str, label: str
) -> None:
    shown = await browser.get(HOME + page)
    assert shown.status == 400
    ((marked, text),) = find_marked(shown).items()
    assert marked == label
    assert text.startswith(f"{label} must")
    assert "after end" not in text
    region = await browser.get(HOME + page, **{"HX-Request": "true", "HX-Target": "region"})
    assert f"{label} must" in region.text


@pytest.mark.parametrize(
    ("error", "marked", "rest"),
    [
        (InvalidRequest("no", errors={"metadata": ["is wrong"]}), {}, ["Metadata is wrong."]),
        (
            InvalidRequest("no", errors={"key_ids": ["[0] must be a string"]}),
            {"key_id": "Key id must be a string."},
            [],
        ),
        (
            InvalidRequest(
                "no", errors={"allowed_models": ["must have at most 3 items", "[1] [2] is x"]}
            ),
            {
                "allowed_models": "Allowed models must have at most 3 entries."
                " Allowed models: entry 2 is x."
            },
            [],
        ),
        (
            InvalidRequest(
                "Invalid value for 'messages[0].content': it must not be empty.",
                param="messages[0].content",
            ),
            {"message": "Message must not be empty."},
            [],
        ),
        (
            InvalidRequest("no", errors={"allowed_models": ["is required"]}),
            {"allowed_models": "Allowed models are required."},
            [],
        ),
        (
            InvalidRequest("Missing required parameter: 'input_file_id'.", param="input_file_id"),
            {"input_file_id": "File id is required."},
            [],
        ),
        (
            NotFound("No such File object: file_x", param="input_file_id"),
            {"input_file_id": "There is no such file."},
            [],
        ),
        (
            Conflict(
                "Model a does not support this limit_window: it is odd.", param="limit_window"
            ),
            {"limit_window": "Model a does not support this “Window”: it is odd."},
            [],
        ),
        (
            Conflict("The model 'model' has no limit_cents."),
            {},
            ["The model “Model” has no “Limit in dollars”."],
        ),
        (Conflict("Use my_limit_cents."), {}, ["Use my_limit_cents."]),
    ],
)
def test_error_is_explained_by_labels(
    error: GatewayError, marked: dict[str, str], rest: list[str]
) -> None:
    problems = explain(error, FIELDS)
    assert problems.fields == marked
    assert problems.rest == rest
