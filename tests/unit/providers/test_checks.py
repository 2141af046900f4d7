"""Checks of provider resources: errors told to the admin, and the documented examples pass."""

import re
from typing import Any

import pytest
import yaml

from gateway_core.api.conditions import Reason
from gateway_core.api.model import ModelSpec
from gateway_core.api.provider import ProviderSpec
from gateway_core.providers.checks import check_provider
from gateway_core.providers.templates import Expression, prune_nulls
from tests.servers.guide import GUIDE, ROOT, read_example
from tests.unit.providers.conftest import INPUT, change, make_document


def test_good_provider_has_no_problems() -> None:
    assert (
        check_provider(ProviderSpec.model_validate(make_document("https://api.example.com/x")))
        == []
    )


EXPRESSION, TEMPLATE = Reason.INVALID_EXPRESSION, Reason.INVALID_TEMPLATE
FIELD = Reason.INVALID_FIELD


@pytest.mark.parametrize(
    ("path", "value", "reason", "text"),
    [
        ("http.submit.body", "{a: ", EXPRESSION, "http.submit.body: "),
        ("http.submit.body", "{a: inputs.x}", EXPRESSION, "unknown name inputs"),
        ("http.submit.body", "{a: true}", EXPRESSION, "write `true` in backquotes"),
        ("http.submit.jobId", "nope(x)", EXPRESSION, "http.submit.jobId: unknown"),
        ("http.submit.errorMessage", "a..b", EXPRESSION, "http.submit.errorMessage"),
        ("http.poll.state", "[", EXPRESSION, "http.poll.state: "),
        ("http.poll.outputs", "a.", EXPRESSION, "http.poll.outputs: "),
        ("http.poll.outputSeconds", "a.", EXPRESSION, "http.poll.outputSeconds: "),
        ("http.poll.errorMessage", "a.", EXPRESSION, "http.poll.errorMessage: "),
        ("http.poll.resultId", "a.", EXPRESSION, "http.poll.resultId: "),
        ("http.poll.body", "{a: model}", EXPRESSION, "http.poll.body: unknown"),
        ("http.lookup.jobId", "a.", EXPRESSION, "http.lookup.jobId: "),
        ("http.cancel.body", "{a: id}", EXPRESSION, "http.cancel.body: "),
        ("http.poll.path", "/jobs/{id}", TEMPLATE, "http.poll.path: unknown"),
        ("http.poll.path", "/jobs", TEMPLATE, "http.poll: must use {jobId}"),
        ("http.cancel.path", "/stop", TEMPLATE, "http.cancel: must use {jobId}"),
        ("http.lookup.path", "/jobs", TEMPLATE, "http.lookup: must use {reference}"),
        ("http.submit.path", "/jobs/{jobId}", TEMPLATE, "http.submit.path: "),
        ("http.result", {"path": "/r/{resultId}"}, TEMPLATE, "http.poll.resultId"),
        (
            "http.result",
            {"path": "/r", "errorMessage": "a."},
            EXPRESSION,
            "http.result.errorMessage: ",
        ),
        (
            "http.headers",
            [{"name": "X-A", "value": "a\r\nX-B: c"}],
            TEMPLATE,
            "http.headers.X-A: may not hold a line break",
        ),
        (
            "http.headers",
            [{"name": "X-A", "value": "{token}"}],
            TEMPLATE,
            "unknown placeholder {token}; there is {credential}",
        ),
        (
            "http.outputHeaders",
            [{"name": "Content-Length", "value": "5"}],
            TEMPLATE,
            "http.outputHeaders.Content-Length: is set by the gateway",
        ),
        (
            "http.headers",
            [{"name": "X-A", "value": "1"}, {"name": "x-a", "value": "2"}],
            TEMPLATE,
            "stands here twice",
        ),
        (
            "http.submit.idempotencyHeader",
            "authorization",
            TEMPLATE,
            "http.submit.idempotencyHeader: authorization has another value",
        ),
        ("credentialsSecretRef", None, TEMPLATE, "no credentialsSecretRef"),
        (
            "http.poll.stateWords.failed",
            ["error", "done"],
            FIELD,
            "http.poll.stateWords: 'done' stands in succeeded and failed",
        ),
        ("http.poll.stateWords.succeeded", [], FIELD, "may not be empty"),
        ("http.poll.minIntervalSeconds", 60, FIELD, "minIntervalSeconds"),
        ("http.lookup.jobs", "a.", EXPRESSION, "http.lookup.jobs: "),
        ("http.lookup.reference", "a.", EXPRESSION, "http.lookup.reference: "),
        ("http.errors", {"code": "a.", "busy": ["X"]}, EXPRESSION, "http.errors.code: "),
        (
            "http.errors",
            {"code": "a", "busy": ["X"], "retryAfter": "divide(a)"},
            EXPRESSION,
            "http.errors.retryAfter: divide() takes 2 argument(s), not 1",
        ),
        (
            "http.errors",
            {"code": "a", "busy": ["X"], "refused": ["Y", "X"]},
            FIELD,
            "http.errors: 'X' stands in refused and busy",
        ),
        ("http.errors", {"code": "a"}, FIELD, "http.errors: must name a code"),
        (
            "http.poll.notifiedIntervalSeconds",
            60,
            FIELD,
            "http.poll.notifiedIntervalSeconds: http.submit.body does not send notifyUrl",
        ),
        ("http.submit.path", "/jobs?to={notifyUrl}", TEMPLATE, "unknown placeholder {notifyUrl}"),
        ("http.outputHosts", ["*"], FIELD, "http.outputHosts: '*' must be"),
        ("http.outputHosts", ["https://a.b"], FIELD, "http.outputHosts: "),
        ("http.baseUrl", "http://a:99999", FIELD, "http.baseUrl: "),
        ("http.baseUrl", "http://a b", FIELD, "http.baseUrl: "),
        ("http.baseUrl", "https://a.example/%zz", FIELD, "http.baseUrl: "),
    ],
)
def test_problem_names_its_field(path: str, value: Any, reason: Reason, text: str) -> None:
    wrong = make_document("https://api.example.com")
    change(wrong, path, value)
    problems = check_provider(ProviderSpec.model_validate(wrong))
    assert [p.reason for p in problems] == [reason] * len(problems)
    assert any(text in problem.text for problem in problems), problems


def test_lookup_needs_a_reference_that_was_sent() -> None:
    wrong = make_document("https://api.example.com")
    change(wrong, "http.submit.idempotencyHeader", None)
    change(wrong, "http.submit.body", "{prompt: input.prompt}")
    (problem,) = check_provider(ProviderSpec.model_validate(wrong))
    assert problem.text.startswith("http.submit: must send `reference`")


@pytest.mark.parametrize("host", ["cdn.example.com", "*.example.com", "127.0.0.1", "::1", "media"])
def test_output_hosts_are_names_and_wildcards(host: str) -> None:
    good = make_document("http://simulator:9010")
    change(good, "http.outputHosts", [host])
    assert check_provider(ProviderSpec.model_validate(good)) == []


def read_local() -> dict[str, Any]:
    """The provider of the local run, its blank filled in."""
    text = (ROOT / "examples/local/provider.yaml").read_text()
    found: dict[str, Any] = yaml.safe_load(text.replace("${PROVIDER_URL}", "http://127.0.0.1:9010"))
    return found


STUDIO, WORKSHOP = read_example("studio"), read_example("workshop")


@pytest.mark.parametrize(
    "resource", [STUDIO["GatewayProvider"], WORKSHOP["GatewayProvider"], read_local()]
)
def test_provider_has_no_problems(resource: dict[str, Any]) -> None:
    assert check_provider(ProviderSpec.model_validate(resource["spec"])) == []


@pytest.mark.parametrize("example", [STUDIO, WORKSHOP])
def test_guides_model_is_one(example: dict[str, Any]) -> None:
    model = ModelSpec.model_validate(example["GatewayModel"]["spec"])
    assert model.routes[0].provider_name == example["GatewayProvider"]["metadata"]["name"]
    secret = example["GatewayProvider"]["spec"]["credentialsSecretRef"]
    assert secret["name"] == example["Secret"]["metadata"]["name"]
    assert secret["key"] in example["Secret"]["stringData"]


def test_guides_request_is_the_one_its_api_takes() -> None:
    spec = ProviderSpec.model_validate(STUDIO["GatewayProvider"]["spec"])
    assert spec.http
    document = {"input": INPUT, "model": "cinema-2", "reference": "uid", "notifyUrl": None}
    assert prune_nulls(Expression(spec.http.submit.body).evaluate(document)) == {
        "model": "cinema-2",
        "text": "A fox",
        "images": [{"url": "https://a.example/1.png", "role": "reference"}],
        "ratio": "16:9",
        "size": {"height": 720},
        "length": "5s",
        "sound": False,
        "metadata": "uid",
    }


@pytest.mark.parametrize(
    ("notify_url", "sent"),
    [
        (None, {}),
        ("https://in.example/x", {"notify": {"uri": "https://in.example/x", "on": ["END"]}}),
    ],
)
def test_second_request_is_the_one_its_api_takes(
    notify_url: str | None, sent: dict[str, Any]
) -> None:
    spec = ProviderSpec.model_validate(WORKSHOP["GatewayProvider"]["spec"])
    assert spec.http
    document = {"input": INPUT, "model": "m", "reference": "uid", "notifyUrl": notify_url}
    assert prune_nulls(Expression(spec.http.submit.body).evaluate(document)) == {
        "script": {"text": "A fox", "stills": [{"uri": "https://a.example/1.png"}]},
        "frame": {"shape": "16:9", "lines": 720},
        "length_ms": 5000,
        "silent": True,
        "labels": {"ref": "uid"},
        **sent,
    }


def test_guides_expressions_are_jmespath() -> None:
    table = re.split(r"\| \w+ \| Expression \|", GUIDE)[1].partition("\n\n")[0]
    cells = re.findall(r"^\| [^|`]+ \| `([^`].*[^`])` \|$", table, re.MULTILINE)
    cells += re.findall(r"``([^`].*?[^`]`)``", table)
    assert len(cells) >= 6
    for cell in cells:
        Expression(cell.replace("\\|", "|"))


def test_every_field_of_a_provider_is_in_the_guide() -> None:
    def names(schema: dict[str, Any]) -> set[str]:
        found = set(schema.get("properties", {}))
        for definition in schema.get("$defs", {}).values():
            found |= set(definition.get("properties", {}))
        return found

    fields = names(ProviderSpec.model_json_schema(by_alias=True))
    missing = {field for field in fields if not re.search(rf"\b{field}\b", GUIDE)}
    assert missing == set()
