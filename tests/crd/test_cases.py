"""Runs the cases, and holds them against the CRDs: no rule is without one."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway_core.api.crd import KINDS
from gateway_core.kube.errors import RequestRejected
from tests.crd.casefile import (
    FOLDER,
    find_difference,
    list_cases,
    merge,
    name_anew,
    read_base,
    read_case,
)
from tests.servers.control_plane import ROOT, ControlPlane

PLURALS = {kind.kind_name: kind.plural for kind in KINDS}


def name_case(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


@pytest.mark.parametrize("path", list_cases(), ids=name_case)
async def test_rule(path: Path, control_plane: ControlPlane) -> None:
    case = read_case(path)
    obj = merge(name_anew(read_base(case.kind)), case.create)
    plural = PLURALS[obj["kind"]]
    name = obj["metadata"]["name"]
    steps: list[tuple[str, Any]] = [("update", patch) for patch in case.updates]
    steps += [("status", patch) for patch in case.statuses]
    async with control_plane.kube() as kube:

        async def take(verb: str, argument: Any) -> dict[str, Any]:
            if verb == "create":
                return await kube.create(plural, argument)
            write = kube.patch if verb == "update" else kube.patch_status
            return await write(plural, await kube.get(plural, name), argument)

        *earlier, last = [("create", obj), *steps]
        for step in earlier:
            await take(*step)
        if case.refused is not None:
            with pytest.raises(RequestRejected) as refusal:
                await take(*last)
            assert case.refused in str(refusal.value)
        else:
            found = await take(*last)
            assert find_difference(found, case.expect) is None
            assert await kube.get(plural, name) == found


def read_schemas() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        crd = yaml.load(path.read_text(), yaml.CSafeLoader)
        schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        yield crd["spec"]["names"]["singular"].removeprefix("gateway"), schema


SCHEMAS = dict(read_schemas())


def find_nodes(schema: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema in a schema, with its place."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from find_nodes(child, f"{path}.{name}")
    if "items" in schema:
        yield from find_nodes(schema["items"], f"{path}[]")


def test_every_cel_rule_has_a_case() -> None:
    refusals: dict[str, str] = {}
    for path in list_cases():
        case = read_case(path)
        refusals[case.kind] = refusals.get(case.kind, "") + f"\n{case.refused}"
    for kind, schema in SCHEMAS.items():
        for place, node in find_nodes(schema):
            for rule in node.get("x-kubernetes-validations", ()):
                text = rule["message"].partition(":")[0]
                assert text in refusals[kind], f"{kind}{place}: no case for {rule['message']!r}"


def test_every_default_has_a_case() -> None:
    for kind, schema in SCHEMAS.items():
        expected = "\n".join(
            yaml.dump(dict(read_case(path).expect))
            for path in list_cases()
            if path.parent.name == kind and read_case(path).expect
        )
        for place, node in find_nodes(schema):
            field = place.rpartition(".")[2]
            if "default" in node and not place.startswith((".spec.http.", ".status")):
                assert re.search(rf"^[ -]*{field}:", expected, re.M), f"{kind}{place}: no case"


@pytest.mark.parametrize("kind", SCHEMAS)
def test_schema_is_bounded(kind: str) -> None:
    """Every string has a longest, every list a most: nothing outgrows etcd, and CEL has a price."""
    for place, node in find_nodes(SCHEMAS[kind]):
        if place in ("", ".apiVersion", ".kind", ".metadata"):
            continue
        match node["type"]:
            case "string":
                assert "maxLength" in node or "enum" in node, f"{place} has no maxLength"
            case "array":
                assert "maxItems" in node, f"{place} has no maxItems"
                assert "x-kubernetes-list-type" in node, place
            case "integer":
                assert "minimum" in node, f"{place} has no minimum"
            case "object":
                assert "x-kubernetes-preserve-unknown-fields" not in node, place
                words = node.get("additionalProperties", {})
                is_map = "maxLength" in words and "maxProperties" in node
                assert node.get("properties") or is_map, f"{place} is open"


def test_every_base_has_a_folder_of_cases() -> None:
    bases = {path.stem for path in FOLDER.glob("bases/*.yaml")}
    assert bases == {path.parent.name for path in list_cases()} == set(SCHEMAS)
