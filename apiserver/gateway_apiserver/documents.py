"""The OpenAPI 3.1 document of the application and its catalog.

FastAPI describes the functions of `routers` by their types. `document_operations` adds what follows
from what an operation requires of its caller (refusals, headers, security), and the ASGI endpoints.
"""

import copy
import re
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from gateway_apiserver.document_operations import describe_operation
from gateway_apiserver.document_schemas import (
    PATTERNS,
    close_shapes,
    describe_errors,
    describe_headers,
)
from gateway_apiserver.endpoints import CallRoute, HeaderDocs, Schema
from gateway_core.providers.catalog import Catalog
from gateway_core.providers.catalog_view import CatalogView

_PARAMETER = re.compile(r"\{(\w+)\}")


class ApiDocument:
    """The document of what can be called now, built once for each catalog.

    `bodies` describe the bodies of functions, by operation id, that depend on the catalog.
    """

    def __init__(
        self,
        app: FastAPI,
        catalog: CatalogView,
        base_url: str,
        *,
        task_id_header: str,
        permits_anonymous: bool,
        bodies: Mapping[str, Callable[[Catalog], Schema]],
    ) -> None:
        self._app = app
        self._catalog = catalog
        self._base_url = base_url
        self._task_id_header = task_id_header
        self._permits_anonymous = permits_anonymous
        self._bodies = bodies
        self._of_functions: dict[str, Any] | None = None
        self._known: tuple[Catalog, bytes] | None = None

    def read(self) -> bytes:
        """Return the document of the present catalog as JSON."""
        current = self._catalog.current
        if self._known is None or self._known[0] is not current:
            # building takes tens of milliseconds, and needs no key to request
            self._known = current, orjson.dumps(self.build(current))
        return self._known[1]

    def build(self, catalog: Catalog) -> dict[str, Any]:
        """Return the document of a catalog."""
        if self._of_functions is None:
            self._of_functions = self._describe_functions()
        document = copy.deepcopy(self._of_functions)
        components: dict[str, Schema] = document["components"]["schemas"]
        paths: dict[str, Any] = document["paths"]
        for item in paths.values():
            for operation in item.values():
                describe = self._bodies.get(operation["operationId"])
                if describe is not None:
                    operation["requestBody"]["content"]["application/json"] = {
                        "schema": describe(catalog)
                    }
        headers: dict[str, HeaderDocs] = {}
        for route in self._app.routes:
            if not isinstance(route, CallRoute):
                continue
            for path, docs in route.describe(catalog):
                described = describe_operation(
                    path, route, docs, catalog, components, self._task_id_header
                )
                if described is None:
                    continue
                headers |= docs.headers
                paths.setdefault(path, {})[route.method.lower()] = described
        for path, item in paths.items():
            for operation in item.values():
                if not self._permits_anonymous and {} in operation.get("security", ()):
                    del operation["security"]
            names = _PARAMETER.findall(path)
            if names:
                item["parameters"] = [_describe_path_parameter(name) for name in names]
        document["paths"] = dict(sorted(paths.items()))
        document["security"] = [{"apiKey": []}]
        document["components"] = {
            "securitySchemes": {
                "apiKey": {"type": "http", "scheme": "bearer"},
                "managementKey": {"type": "http", "scheme": "bearer"},
            },
            "schemas": dict(sorted(components.items())),
            "headers": describe_headers(self._task_id_header, headers),
        }
        return document

    def _describe_functions(self) -> dict[str, Any]:
        """Return FastAPI's description of the functions of `routers`, the same for all catalogs."""
        document = get_openapi(
            title="Model Gateway",
            version="v1",
            description="Asynchronous tasks of hosted AI models, and the keys that call them."
            " Errors are JSON objects.",
            license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
            servers=[{"url": self._base_url}],
            routes=self._app.routes,
        )
        components: dict[str, Schema] = document["components"]["schemas"]
        for name in ("HTTPValidationError", "ValidationError"):
            components.pop(name, None)
        components |= describe_errors()
        for item in document["paths"].values():
            for operation in item.values():
                _tidy_operation(operation)
                close_shapes(operation["responses"], components)
        named: dict[str, Any] = _tidy_text(document)
        return named


def _tidy_operation(operation: dict[str, Any]) -> None:
    """Drop what FastAPI says of errors that are answered otherwise, and of absent parameters."""
    operation["responses"].pop("422", None)
    operation["responses"] = dict(sorted(operation["responses"].items()))
    kept = []
    for parameter in operation.pop("parameters", ()):
        if parameter["in"] == "path":
            continue
        schema = parameter["schema"]
        choices = [part for part in schema.pop("anyOf", ()) if part.get("type") != "null"]
        schema |= choices[0] if choices else {}
        schema.pop("title", None)
        if "description" in schema:
            parameter["description"] = schema.pop("description")
        if schema.get("default", ...) is None:
            del schema["default"]
        if schema.get("type") == "array":
            parameter |= {"style": "form", "explode": False}
        kept.append(parameter)
    if kept:
        operation["parameters"] = kept


def _tidy_text(node: Any) -> Any:
    """Return the same with the names that clients know, and bounds of integers as integers."""
    text = re.sub(rb"\bPage_(\w+?)_(?=\")", rb"\1List", orjson.dumps(node))
    text = re.sub(rb"\bUsageReport(?=\")", b"ReportUsage", text)
    # FastAPI has a float for each bound
    return orjson.loads(re.sub(rb'("(?:minimum|maximum)":-?\d+)\.0\b', rb"\1", text))


def _describe_path_parameter(name: str) -> dict[str, Any]:
    pattern = PATTERNS.get(name)
    schema = {"type": "string", "minLength": 1} if pattern is None else {"type": "string"}
    if pattern is not None:
        schema["pattern"] = pattern
    return {"name": name, "in": "path", "required": True, "schema": schema}
