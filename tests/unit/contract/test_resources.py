"""The models the processes parse with: lenient towards newer releases, strict about values."""

import copy
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter, ValidationError

from gateway_core.api.account import GatewayAccount
from gateway_core.api.batch import BatchStatus
from gateway_core.api.crd import KINDS
from gateway_core.api.ids import SHARDS, shard_of
from gateway_core.api.key import GatewayKey
from gateway_core.api.resource import Resource, Time, skeleton
from gateway_core.api.task import GatewayTask

BASES = Path(__file__).resolve().parents[2] / "crd" / "bases"


def read_base(kind: type[Resource]) -> dict[str, Any]:
    name = kind.kind_name.removeprefix("Gateway").lower()
    loaded: dict[str, Any] = yaml.safe_load((BASES / f"{name}.yaml").read_text())
    return loaded


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.plural)
def test_the_smallest_object_parses(kind: type[Resource]) -> None:
    obj = kind.model_validate(read_base(kind))
    assert obj.metadata.name


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.plural)
def test_what_a_newer_release_wrote_is_left_aside(kind: type[Resource]) -> None:
    raw = read_base(kind)
    raw["spec"]["fromTheFuture"] = {"a": 1}
    raw["metadata"]["selfLink"] = "/x"
    raw["status"] = {"fromTheFuture": True}
    kind.model_validate(raw)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.plural)
def test_parsing_changes_nothing(kind: type[Resource]) -> None:
    raw = read_base(kind)
    before = copy.deepcopy(raw)
    kind.model_validate(raw)
    assert raw == before


def test_names_outside_are_camel_case() -> None:
    key = GatewayKey.model_validate(read_base(GatewayKey))
    dumped = key.model_dump(by_alias=True, exclude_none=True)
    assert {"accountName", "class", "displayName"} <= set(dumped["spec"])


def test_funds_default_to_nothing() -> None:
    account = GatewayAccount.model_validate(read_base(GatewayAccount))
    assert account.spec.funds is None
    assert account.spec.requests_per_minute is None


def test_a_task_without_a_request_is_refused() -> None:
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
def test_a_time_that_is_taken_can_be_read(text: str) -> None:
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
def test_a_time_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Time).validate_python(text)


def test_shards_are_even_and_the_same_on_every_release() -> None:
    counts = [0] * SHARDS
    for number in range(16_000):
        counts[shard_of(f"task-{number}")] += 1
    assert min(counts) > 900
    assert shard_of("task-abc") == 2


def test_a_skeleton_is_the_head_of_an_object() -> None:
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
