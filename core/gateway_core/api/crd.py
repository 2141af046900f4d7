"""CustomResourceDefinitions with structural schemas, made from the pydantic models."""

from typing import Any

from gateway_core.api.account import GatewayAccount, GatewayUser
from gateway_core.api.batch import GatewayBatch
from gateway_core.api.file import GatewayFile
from gateway_core.api.guardrail import GatewayGuardrail
from gateway_core.api.ids import CATEGORY, GROUP, VERSION
from gateway_core.api.key import GatewayKey
from gateway_core.api.model import GatewayModel, GatewayPrompt
from gateway_core.api.oauth import GatewayGrant, GatewayOAuthClient
from gateway_core.api.provider import GatewayProvider
from gateway_core.api.resource import Resource
from gateway_core.api.task import GatewayTask
from gateway_core.api.upload import GatewayUpload
from gateway_core.api.usage import GatewayUsage

KINDS: tuple[type[Resource], ...] = (
    GatewayAccount,
    GatewayBatch,
    GatewayFile,
    GatewayGrant,
    GatewayGuardrail,
    GatewayKey,
    GatewayModel,
    GatewayOAuthClient,
    GatewayPrompt,
    GatewayProvider,
    GatewayTask,
    GatewayUpload,
    GatewayUsage,
    GatewayUser,
)

_ATOMIC = {"x-kubernetes-map-type": "atomic"}
"""One owner for all fields of an object. Otherwise `metadata.managedFields` lists each field: 40 %
of a task's bytes, computed by the API server at every write."""
_UNCHANGING = "self == oldSelf"
_DROPPED = {"title", "discriminator", "examples", "$defs"}
_EXCLUSIVE = (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))


def build_crd(kind: type[Resource]) -> dict[str, Any]:
    """Return the CustomResourceDefinition of one kind.

    Raises:
        ValueError: a field is a union of several types, which no structural schema can express.
    """
    raw = kind.model_json_schema(by_alias=True, mode="validation")
    properties = _structural(raw, raw.get("$defs", {}))["properties"]
    root: dict[str, Any] = {
        "type": "object",
        "description": (kind.__doc__ or "").strip(),
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": properties["spec"],
            "status": {**properties["status"], **_ATOMIC},
        },
    }
    if kind.rules:
        root["x-kubernetes-validations"] = kind.rules
    version: dict[str, Any] = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [
            {"name": name, "type": kind_, "jsonPath": path, **({"priority": low} if low else {})}
            for name, kind_, path, low in kind.columns
        ],
        "schema": {"openAPIV3Schema": root},
    }
    if kind.selectable:
        version["selectableFields"] = [{"jsonPath": path} for path in kind.selectable]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind.kind_name,
                "listKind": kind.kind_name + "List",
                "plural": kind.plural,
                "singular": kind.kind_name.lower(),
                "shortNames": [kind.short_name],
                "categories": [CATEGORY],
            },
            "versions": [version],
        },
    }


def _structural(node: Any, definitions: dict[str, Any]) -> Any:
    if not isinstance(node, dict):
        return node
    node = _flatten(dict(node), definitions)
    if "const" in node:
        node["enum"] = [node.pop("const")]
    for bound, exclusive in _EXCLUSIVE:
        if exclusive in node:
            node[bound], node[exclusive] = node[exclusive], True
    if node.get("additionalProperties") is False:
        del node["additionalProperties"]
    out: dict[str, Any] = {}
    for key, value in node.items():
        if key in _DROPPED or (key == "default" and value is None):
            continue
        if key == "properties":
            out[key] = {name: _structural(schema, definitions) for name, schema in value.items()}
        elif key in ("items", "additionalProperties"):
            out[key] = _structural(value, definitions)
        else:
            out[key] = value
    rules = out.get("x-kubernetes-validations", ())
    if "properties" in out and any(rule["rule"] == _UNCHANGING for rule in rules):
        out |= _ATOMIC
    if out.get("type") == "integer" and "format" not in out:
        out["format"] = "int64"
    return out


def _flatten(node: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """`node` with references inlined and optional types unwrapped."""
    while True:
        if "$ref" in node:
            target = definitions[node.pop("$ref").rsplit("/", 1)[1]]
            node = _merge(target, node)
        elif "anyOf" in node:
            arms = [arm for arm in node.pop("anyOf") if arm.get("type") != "null"]
            if len(arms) != 1:
                raise ValueError(f"a union is not structural: {arms}")
            node = _merge(arms[0], node)
        elif "allOf" in node:
            arms = node.pop("allOf")
            if len(arms) != 1:
                raise ValueError(f"several schemas at once are not structural: {arms}")
            node = _merge(arms[0], node)
        else:
            return node


def _merge(inner: dict[str, Any], outer: dict[str, Any]) -> dict[str, Any]:
    """`inner` overlaid by `outer`, with the validations of both."""
    rules = [*inner.get("x-kubernetes-validations", []), *outer.get("x-kubernetes-validations", [])]
    merged = {**inner, **outer}
    if rules:
        merged["x-kubernetes-validations"] = rules
    return merged
