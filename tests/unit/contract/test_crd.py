"""The CRD generator: what it makes of a model, what it refuses, and that `crds/` is its work."""

import itertools
import re
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest
import yaml
from pydantic import Field

from gateway_core.api.crd import KINDS, build_crd
from gateway_core.api.ids import CATEGORY, GROUP
from gateway_core.api.resource import Part, Resource, Status
from gateway_core.api.task import GatewayTask

ROOT = Path(__file__).resolve().parents[3]


def schema_of(spec_type: type[Part]) -> dict[str, Any]:
    """The generated schema of `spec_type` in a kind of its own."""

    class Kind(Resource):
        """A kind."""

        kind_name: ClassVar[str] = "Kind"
        plural: ClassVar[str] = "kinds"
        short_name: ClassVar[str] = "k"
        spec: spec_type
        status: Status = Field(default_factory=Status)

    root = build_crd(Kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    found: dict[str, Any] = root["properties"]["spec"]
    return found


def test_an_optional_field_is_its_type_and_not_required() -> None:
    class Spec(Part):
        """A spec."""

        text_here: Annotated[str | None, Field(max_length=5)] = None

    schema = schema_of(Spec)
    assert schema["properties"] == {"textHere": {"type": "string", "maxLength": 5}}
    assert "required" not in schema


def test_a_required_field_is_required() -> None:
    class Spec(Part):
        """A spec."""

        count: Annotated[int, Field(ge=1)]

    schema = schema_of(Spec)
    assert schema["required"] == ["count"]
    assert schema["properties"]["count"] == {"type": "integer", "format": "int64", "minimum": 1}


def test_a_default_is_kept_unless_it_is_none() -> None:
    class Spec(Part):
        """A spec."""

        on: bool = False
        off: bool | None = None

    properties = schema_of(Spec)["properties"]
    assert properties == {"on": {"type": "boolean", "default": False}, "off": {"type": "boolean"}}


def test_a_nested_part_is_inlined_with_the_rules_of_both_places() -> None:
    class Inner(Part):
        """Inside."""

        name: Annotated[str, Field(max_length=3)]

    class Spec(Part):
        """A spec."""

        inner: Annotated[
            Inner | None,
            Field(
                description="Here.",
                json_schema_extra={"x-kubernetes-validations": [{"rule": "true", "message": "m"}]},
            ),
        ] = None

    inner = schema_of(Spec)["properties"]["inner"]
    assert inner["description"] == "Here."
    assert inner["properties"]["name"]["maxLength"] == 3
    assert inner["x-kubernetes-validations"] == [{"rule": "true", "message": "m"}]
    assert "$ref" not in str(inner)


def test_an_exclusive_bound_is_said_as_version_three_says_it() -> None:
    class Spec(Part):
        """A spec."""

        share: Annotated[int, Field(gt=0, lt=100)]

    share = schema_of(Spec)["properties"]["share"]
    assert share["minimum"] == 0
    assert share["exclusiveMinimum"] is True
    assert share["maximum"] == 100
    assert share["exclusiveMaximum"] is True


def test_a_union_is_refused() -> None:
    class Spec(Part):
        """A spec."""

        either: int | str

    with pytest.raises(ValueError, match="a union is not structural"):
        schema_of(Spec)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.plural)
def test_names_follow_the_design(kind: type[Resource]) -> None:
    crd = build_crd(kind)
    names = crd["spec"]["names"]
    assert crd["metadata"]["name"] == f"{names['plural']}.{GROUP}"
    assert names["kind"].startswith("Gateway")
    assert names["categories"] == [CATEGORY] == ["modelgateway"]
    assert re.fullmatch(r"gw[a-z]+", names["shortNames"][0])
    assert crd["spec"]["scope"] == "Namespaced"


def split_union(path: str) -> list[str]:
    """The paths that one with a union stands for: `.spec['http','openai'].baseUrl`."""
    union = re.search(r"\['\w+'(,'\w+')+\]", path)
    if union is None:
        return [path]
    return [path.replace(union[0], f".{name}") for name in re.findall(r"\w+", union[0])]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.plural)
def test_columns_and_selectable_fields_name_fields_that_are_there(kind: type[Resource]) -> None:
    version = build_crd(kind)["spec"]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]
    paths = [column["jsonPath"] for column in version["additionalPrinterColumns"]]
    paths += [selectable["jsonPath"] for selectable in version["selectableFields"]]
    for path in itertools.chain.from_iterable(map(split_union, paths)):
        node = schema
        steps = re.sub(r"\[[^\]]*\]", "", path).strip(".").split(".")
        if steps[0] == "metadata":
            continue
        for step in steps:
            node = node.get("items", node)["properties"][step]


def test_what_the_client_asked_for_is_required() -> None:
    schema = build_crd(GatewayTask)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert "request" in schema["properties"]["spec"]["required"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.plural)
def test_committed_files_are_what_the_models_say(kind: type[Resource]) -> None:
    committed = yaml.safe_load((ROOT / "crds" / f"{kind.plural}.yaml").read_text())
    assert committed == build_crd(kind), "run `make generate`"


def test_no_other_file_is_committed() -> None:
    names = {path.name for path in (ROOT / "crds").iterdir()}
    assert names == {f"{kind.plural}.yaml" for kind in KINDS}
