"""The OpenAPI document says what the API does: every answer it may give fits it."""

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import CHECKS

from gateway_apiserver.openapi import build_document
from gateway_core.providers.catalog import Catalog
from tests.unit.apiserver.gateway import MODEL, PATH, Gateway, call, clear_environment


async def _document(gateway: Gateway) -> dict[str, Any]:
    answer = await call(gateway.app, "GET", "/openapi.json")
    assert answer.status == 200
    document: dict[str, Any] = answer.json
    return document


async def test_document_is_built_once_for_each_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Catalog] = []

    def build(catalog: Catalog, **options: Any) -> dict[str, Any]:
        made.append(catalog)
        return build_document(catalog, **options)

    monkeypatch.setattr("gateway_apiserver.app.build_document", build)
    gateway = Gateway()
    first = await _document(gateway)
    for _ in range(3):
        assert await _document(gateway) == first
    assert len(made) == 1
    gateway.put_model("second")
    assert await _document(gateway) != first
    assert len(made) == 2


async def test_paths_follow_the_catalog(gateway: Gateway) -> None:
    document = await _document(gateway)
    document["paths"] = {
        path: methods
        for path, methods in document["paths"].items()
        if not path.startswith(("/api/v1/management/", "/v1/", "/v1beta/"))
    }
    account = {"/api/v1/me", "/api/v1/me/balance"}
    account |= {"/api/v1/price_schedules", "/api/v1/price_quotes"}
    account |= {"/api/v1/files", "/api/v1/files/prepare", "/api/v1/files/confirm"}
    assert set(document["paths"]) == {PATH, PATH + "/{task_id}"} | account
    gateway.put_model("second")
    gateway.put_model("third", service="other")
    document = await _document(gateway)
    assert "/api/v1/other/reference_to_video" in document["paths"]
    content = document["paths"][PATH]["post"]["requestBody"]["content"]
    schema = content["application/json"]["schema"]
    assert set(schema["properties"]["model"]["enum"]) == {MODEL, "second"}


async def test_default_is_shown_where_all_models_share_it(gateway: Gateway) -> None:
    gateway.put_model(fields=[{"name": "output_resolution", "default": '"1080p"'}])

    async def shown() -> Any:
        paths = (await _document(gateway))["paths"]
        content = paths[PATH]["post"]["requestBody"]["content"]["application/json"]
        return content["schema"]["properties"]["output_resolution"].get("default")

    assert await shown() == "1080p"
    gateway.put_model("second")
    assert await shown() is None


async def test_references_lead_somewhere(gateway: Gateway) -> None:
    document = await _document(gateway)
    references = _references(document)
    assert references
    for reference in references:
        node = document
        for part in reference.removeprefix("#/").split("/"):
            node = node[part]


def _references(node: Any) -> list[str]:
    if isinstance(node, list):
        return [found for item in node for found in _references(item)]
    if not isinstance(node, dict):
        return []
    own = [node["$ref"]] if "$ref" in node else []
    return own + [found for value in node.values() for found in _references(value)]


def _serve() -> tuple[Gateway, Any]:
    """Made at import, since the cases are; the settings of the environment do not count."""
    with pytest.MonkeyPatch.context() as patch:
        clear_environment(patch)
        gateway = Gateway(management_calls_per_minute=10**6, file_creates_per_minute=10**6)
    gateway.put_account("demo", unlimited=True, requestsPerMinute=1_000_000, storageBytes=2**50)
    return gateway, schemathesis.openapi.from_asgi("/openapi.json", gateway.app)


_gateway, _schema = _serve()
_management_key = _gateway.put_key("demo", "Management")
_BELOW_MANAGEMENT = "^/api/v1/management/"
_OF_ACTIONS = {"unsupported_method", "allow_header_conformance"}
_SETTINGS = settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.filterwarnings("ignore")
@_schema.exclude(path_regex=_BELOW_MANAGEMENT).parametrize()
@_SETTINGS
def test_every_answer_fits_the_document(case: Any) -> None:
    headers = {"Authorization": f"Bearer {_gateway.key}"}
    beyond_schemas = {
        # that a source can be fetched is more than a schema can say
        "POST /api/v1/files": {"positive_data_acceptance"},
        # too many bytes are refused by 413, which the check does not count as a refusal; and a GET
        # is answered by 404 (contract §4.6)
        "POST /v1/uploads": {"negative_data_rejection", "unsupported_method"},
        # unknown parameters and fields are passed over
        "GET /v1/files": {"negative_data_rejection"},
        "POST /v1/files": {"negative_data_rejection"},
        "GET /v1/batches": {"negative_data_rejection"},
        # the token of a page is opaque, and unknown parameters are passed over
        "GET /v1beta/models": {"positive_data_acceptance", "negative_data_rejection"},
        # an action is part of a model's path, and an unknown one is 404 (contract §8.1)
        "GET /v1/models/{model_id}": _OF_ACTIONS,
        "GET /v1beta/models/{model_id}": _OF_ACTIONS,
        # calls that would be stored at the provider are 404 (contract §7.5)
        "POST /v1/chat/completions": {"unsupported_method"},
    }
    beyond = beyond_schemas.get(case.operation.label, set())
    checks = [check for check in CHECKS.get_all() if check.__name__ not in beyond]
    case.call_and_validate(checks=checks, headers=headers)


@pytest.mark.filterwarnings("ignore")
@_schema.include(path_regex=_BELOW_MANAGEMENT).parametrize()
@_SETTINGS
def test_every_answer_to_a_management_key_fits_the_document(case: Any) -> None:
    headers = {"Authorization": f"Bearer {_management_key}"}
    # that `end` is within 93 days of `start` is more than a schema can say
    beyond_schemas = {"/api/v1/management/usage"}
    checks = [
        check
        for check in CHECKS.get_all()
        if case.path not in beyond_schemas or check.__name__ != "positive_data_acceptance"
    ]
    case.call_and_validate(checks=checks, headers=headers)
