"""The OpenAPI document follows the catalog; `tests/conformance` holds answers against it."""

from typing import Any

import pytest

from gateway_apiserver.documents import ApiDocument
from gateway_core.providers.catalog import Catalog
from tests.unit.apiserver.gateway import MODEL, PATH, Gateway, call


async def _document(gateway: Gateway) -> dict[str, Any]:
    answer = await call(gateway.app, "GET", "/openapi.json")
    assert answer.status == 200
    document: dict[str, Any] = answer.json
    return document


async def test_document_is_built_once_for_each_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Catalog] = []
    build = ApiDocument.build

    def count(document: ApiDocument, catalog: Catalog) -> dict[str, Any]:
        made.append(catalog)
        return build(document, catalog)

    monkeypatch.setattr(ApiDocument, "build", count)
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
    tasks = {PATH, PATH + "/{task_id}", PATH + "/{task_id}/cancel", "/api/v1/tasks"}
    assert set(document["paths"]) == tasks | account
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


async def test_report_of_usage_has_the_name_that_generated_clients_know(gateway: Gateway) -> None:
    document = await _document(gateway)
    assert "ReportUsage" in document["components"]["schemas"]
    report = document["paths"]["/api/v1/management/usage"]["get"]["responses"]["200"]
    assert _references(report["content"]) == ["#/components/schemas/ReportUsage"]


def _references(node: Any) -> list[str]:
    if isinstance(node, list):
        return [found for item in node for found in _references(item)]
    if not isinstance(node, dict):
        return []
    own = [node["$ref"]] if "$ref" in node else []
    return own + [found for value in node.values() for found in _references(value)]


@pytest.mark.parametrize(
    ("path", "media_type"),
    [
        ("/docs", "text/html; charset=utf-8"),
        ("/docs/swagger-ui-bundle.js", "text/javascript; charset=utf-8"),
        ("/docs/swagger-ui.css", "text/css; charset=utf-8"),
    ],
)
async def test_page_of_the_operations_loads_from_its_own_origin_or_is_off(
    gateway: Gateway, path: str, media_type: str
) -> None:
    answer = await call(gateway.app, "GET", path)
    assert (answer.status, answer.headers["content-type"]) == (200, media_type)
    assert b"https://cdn." not in answer.body
    assert (
        "unsafe-inline" not in answer.headers["content-security-policy"].partition("style-src")[0]
    )
    off = Gateway(docs_enabled=False)
    assert (await call(off.app, "GET", path)).status == 404
