"""What the chart has from elsewhere: CRDs, the simulator's objects, schema and table of the values.

Used by `tools/generate.py`. A value without a comment that begins with two dashes is an error.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from tools.reference.tables import build_table

_BLANK = re.compile(r"\$\{([A-Z_]+)\}")
_TYPES: dict[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    type(None): "null",
    list: "array",
    dict: "object",
}
_PREFIX = '{{ include "gateway.name" . }}'
_LOCAL_SECRETS = ("simulated-provider", "simulated-moderation-key")
_SIMULATOR_VALUES = {"PROVIDER_URL": f"http://{_PREFIX}-simulator:9010"}
_TRIAL_ACCOUNT = """\
apiVersion: modelgateway.dev/v1alpha1
kind: GatewayAccount
metadata:
  name: trial
spec:
  displayName: Trial of the installation
  owner:
    name: helm test
    email: trial@example.com
  funds:
    paidMicros: 1000000000
    bonusMicros: 0
  webhookSecretRef:
    name: '{{ include "gateway.name" . }}-trial-webhook'
    key: secret
"""


@dataclass(frozen=True, slots=True)
class Value:
    """A leaf of values.yaml: its path, default, description, and what its schema says besides."""

    path: tuple[str, ...]
    default: Any
    text: str
    schema: dict[str, Any]


def template_crd(text: str) -> str:
    """Return a CRD file as a template: switchable, kept at an uninstall, its braces literal."""
    body = text.replace("{{", '{{ "{{" }}')
    kept = "metadata:\n  annotations:\n    helm.sh/resource-policy: keep\n"
    return (
        "{{- if .Values.crds.install }}\n" + body.replace("metadata:\n", kept, 1) + "{{- end }}\n"
    )


def template_simulator_objects(folder: Path) -> str:
    """Providers and models of the local run, with the names of an installation, and an account."""
    texts = [_TRIAL_ACCOUNT]
    for name in ("provider.yaml", "model.yaml", "moderation.yaml", "chat.yaml"):
        text = (folder / name).read_text()
        literal = text.replace("{{", '{{ "{{" }}')
        texts.append(_BLANK.sub(lambda match: _SIMULATOR_VALUES[match[1]], literal))
    whole = "---\n".join(texts)
    for name in _LOCAL_SECRETS:
        whole = whole.replace(f"name: {name}", f"name: '{_PREFIX}-simulator'")
    return whole


def read_values(text: str) -> list[Value]:
    """Return every described value, in the file's order.

    Raises:
        ValueError: a value has no description.
    """
    lines, root = text.splitlines(), yaml.compose(text, yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    return list(_walk(yaml.safe_load(text), root, lines, ()))


def _walk(
    tree: Any, node: yaml.MappingNode, lines: list[str], above: tuple[str, ...]
) -> Iterator[Value]:
    for key, inner in node.value:
        path, default = (*above, key.value), tree[key.value]
        comment = list[str]()
        while (line := lines[key.start_mark.line - len(comment) - 1].strip()).startswith("#"):
            comment.insert(0, line.removeprefix("#").strip())
        schema = "".join(line.removeprefix("@schema ") for line in comment if line[:1] == "@")
        words = " ".join(line for line in comment if line[:1] != "@")
        _, mark, description = f" {words}".rpartition(" -- ")
        if mark:
            yield Value(path, default, description, json.loads(schema or "{}"))
        elif isinstance(inner, yaml.MappingNode) and default:
            yield from _walk(default, inner, lines, path)
        else:
            raise ValueError(f"{'.'.join(path)} has no description")


def build_schema(values: list[Value]) -> dict[str, Any]:
    """Return a JSON schema of the values: types by their defaults, nothing that is not known."""
    root = _object_schema()
    for value in values:
        node = root
        for part in value.path[:-1]:
            node = node["properties"].setdefault(part, _object_schema())
        node["properties"][value.path[-1]] = {
            "description": value.text,
            "type": _TYPES[type(value.default)],
            **value.schema,
        }
    root["properties"]["global"] = {"description": "Set by parent charts.", "type": "object"}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **root}


def _object_schema() -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": {}}


def build_readme(values: list[Value], introduction: str) -> str:
    """Return the chart's README: an introduction, then every value."""
    rows = [(f"`{'.'.join(v.path)}`", f"`{json.dumps(v.default)}`", v.text) for v in values]
    table = build_table(("Value", "Default", ""), rows)
    return f"{introduction.rstrip()}\n\n## Values\n\n{table}\n"
