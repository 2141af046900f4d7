"""Resource models, lenient towards newer releases, and the CRDs generated from them."""

import copy
import functools
import itertools
import json
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest
import yaml
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from gateway_core.api.account import GatewayAccount
from gateway_core.api.batch import BatchStatus
from gateway_core.api.crd import KINDS, build_crd
from gateway_core.api.ids import CATEGORY, GROUP, SHARDS, shard_of
from gateway_core.api.key import GatewayKey
from gateway_core.api.resource import Part, Resource, Status, Time, checked, rule, skeleton
from gateway_core.api.task import GatewayTask

ROOT = Path(__file__).resolve().parents[3]
BASES = ROOT / "tests" / "crd" / "bases"
define = functools.cache(build_crd)


def read_base(kind: type[Resource]) -> dict[str, Any]:
    name = kind.kind_name.removeprefix("Gateway").lower()
    loaded: dict[str, Any] = yaml.safe_load((BASES / f"{name}.yaml").read_text())
    return loaded


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.plural)
def test_smallest_object_is_parsed_and_left_unchanged(kind: type[Resource]) -> None:
    raw = read_base(kind)
    before = copy.deepcopy(raw)
    assert kind.model_validate(raw).metadata.name
    assert raw == before


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.plural)
def test_fields_of_a_newer_release_are_ignored(kind: type[Resource]) -> None:
    raw = read_base(kind)
    raw["spec"]["fromTheFuture"] = {"a": 1}
    raw["metadata"]["selfLink"] = "/x"
    raw["status"] = {"fromTheFuture": True}
    kind.model_validate(raw)


def test_names_outside_are_camel_case() -> None:
    key = GatewayKey.model_validate(read_base(GatewayKey))
    dumped = key.model_dump(by_alias=True, exclude_none=True)
    assert {"accountName", "class", "displayName"} <= set(dumped["spec"])


def test_funds_default_to_nothing() -> None:
    account = GatewayAccount.model_validate(read_base(GatewayAccount))
    assert account.spec.funds is None
    assert account.spec.requests_per_minute is None


def test_task_without_a_request_is_refused() -> None:
    with pytest.raises(ValidationError):
        GatewayTask.model_validate({"metadata": {"name": "task-a"}, "spec": {}})


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-21T10:00:00Z",
        "2026-11-21T10:00:00.123456789Z",
        "2026-11-21T10:00:00+23:59",
        "2026-11-21T10:00:00.1-02:00",
    ],
)
def test_time_that_is_taken_can_be_read(text: str) -> None:
    assert TypeAdapter(Time).validate_python(text) == text
    assert datetime.fromisoformat(text).tzinfo is not None


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-21T10:00:00",
        "2026-11-21t10:00:00z",
        "2026-11-21T10:00:00+99:99",
        "2026-11-21T10:00:00ZTnonsense",
        "0000-01-01T00:00:00Z",
        "2026-11-21",
        "",
    ],
)
def test_time_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Time).validate_python(text)


def test_shards_are_even_and_the_same_on_every_release() -> None:
    counts = [0] * SHARDS
    for number in range(16_000):
        counts[shard_of(f"task-{number}")] += 1
    assert min(counts) > 900
    assert shard_of("task-abc") == 2


def test_skeleton_is_the_head_of_an_object() -> None:
    head = skeleton(GatewayTask, "task-a", labels={"a": "b"})
    assert head == {
        "apiVersion": "modelgateway.dev/v1alpha1",
        "kind": "GatewayTask",
        "metadata": {"name": "task-a", "labels": {"a": "b"}},
    }


def test_batch_with_longer_message_of_an_older_release_is_read() -> None:
    """A failed batch that cannot be read would never be settled."""
    errors = [{"code": "invalid_json", "message": "m" * 512}]
    status = BatchStatus.model_validate({"phase": "Failed", "errors": errors})
    assert status.errors is not None
    assert len(status.errors[0].message) == 512


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


def test_nested_part_has_the_rules_of_both_places() -> None:
    of_part, of_field = rule("self.a > 0", "of the part"), rule("self.a < 9", "of the field")

    class Inner(Part):
        """Inside."""

        model_config = ConfigDict(json_schema_extra=checked(of_part))

        a: int

    class Spec(Part):
        """A spec."""

        inner: Annotated[Inner, Field(json_schema_extra=checked(of_field))]

    inner = schema_of(Spec)["properties"]["inner"]
    assert inner["x-kubernetes-validations"] == [of_part, of_field]


def test_exclusive_bound_is_said_as_version_three_says_it() -> None:
    class Spec(Part):
        """A spec."""

        share: Annotated[int, Field(gt=0, lt=100)]

    share = schema_of(Spec)["properties"]["share"]
    assert share["minimum"] == 0
    assert share["exclusiveMinimum"] is True
    assert share["maximum"] == 100
    assert share["exclusiveMaximum"] is True


def test_union_is_refused() -> None:
    class Spec(Part):
        """A spec."""

        either: int | str

    with pytest.raises(ValueError, match="a union is not structural"):
        schema_of(Spec)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.plural)
def test_names_follow_the_design(kind: type[Resource]) -> None:
    crd = define(kind)
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
    version = define(kind)["spec"]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]
    paths = [column["jsonPath"] for column in version["additionalPrinterColumns"]]
    paths += [selectable["jsonPath"] for selectable in version.get("selectableFields", ())]
    for path in itertools.chain.from_iterable(map(split_union, paths)):
        node = schema
        steps = re.sub(r"\[[^\]]*\]", "", path).strip(".").split(".")
        if steps[0] == "metadata":
            continue
        for step in steps:
            node = node.get("items", node)["properties"][step]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.plural)
def test_committed_files_are_what_the_models_say(kind: type[Resource]) -> None:
    committed = yaml.safe_load((ROOT / "crds" / f"{kind.plural}.yaml").read_text())
    assert committed == define(kind), "run `make generate`"


def test_directory_of_definitions_has_no_further_file() -> None:
    names = {path.name for path in (ROOT / "crds").iterdir()}
    assert names == {f"{kind.plural}.yaml" for kind in KINDS}


def list_fields(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every field with its path; `metadata` and the like are the API server's."""
    for name, field in schema.get("properties", {}).items():
        if path or name in ("spec", "status"):
            yield f"{path}.{name}", field
            yield from list_fields(field, f"{path}.{name}")
    if isinstance(items := schema.get("items"), dict):
        yield from list_fields(items, f"{path}[]")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.plural)
def test_every_field_has_a_description(kind: type[Resource]) -> None:
    """`kubectl explain` shows them; fields of money, time and bytes name their unit."""
    schema = define(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    fields = dict(list_fields(schema))
    assert len(fields) > 5
    assert [
        path for path, field in fields.items() if not field.get("description", "").strip()
    ] == []
    for path, field in fields.items():
        if path.endswith("Micros"):
            assert "micro-dollars" in field["description"], path


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.plural)
def test_definition_fits_the_annotation_of_kubectl_apply(kind: type[Resource]) -> None:
    """`kubectl apply` keeps the object as JSON in an annotation; all have at most 256 KiB."""
    assert len(json.dumps(define(kind))) < 128 * 1024


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.plural)
def test_error_of_an_invalid_object_has_none_of_its_values(kind: type[Resource]) -> None:
    """Errors are logged, and a task has a prompt."""
    with pytest.raises(ValidationError) as failure:
        kind.model_validate({"metadata": {"uid": ["hidden"]}, "spec": ["hidden"]})
    assert "hidden" not in str(failure.value)
