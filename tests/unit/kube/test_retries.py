"""Retries of creates and updates: which outcome a lost answer, a conflict or a rejection leaves."""

from typing import Any

import pytest

from gateway_core.api.ids import REQUEST_ID_ANNOTATION
from gateway_core.api.resource import Object
from gateway_core.kube import retries
from gateway_core.kube.errors import (
    AlreadyExists,
    KubernetesError,
    KubernetesUnavailable,
    ObjectNotFound,
    RequestRejected,
    WriteConflict,
    WriteOutcomeUnknown,
)
from tests.fakes.clock import in_virtual_time
from tests.fakes.kubernetes import FakeKubernetes, Fault

KIND = "gatewaykeys"


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "GIVE_UP_SECONDS", 0.3)
    monkeypatch.setattr(retries, "REFUSE_SECONDS", 0.1)
    monkeypatch.setattr(retries, "FIRST_PAUSE_SECONDS", 0.01)


def make(request_id: str | None = "req_1") -> Object:
    annotations = {} if request_id is None else {REQUEST_ID_ANNOTATION: request_id}
    return {"metadata": {"name": "key-a", "annotations": annotations}, "spec": {}}


@pytest.mark.parametrize("request_id", ["req_1", None])
async def test_create_whose_answer_was_lost_is_of_this_call(request_id: str | None) -> None:
    kube = FakeKubernetes()
    kube.order_faults("create", Fault(WriteOutcomeUnknown("cut"), applied=True))
    assert (await kube.create_or_get(KIND, make(request_id))).is_new
    if request_id is None:
        assert not (await kube.create_or_get(KIND, make(None))).is_new


async def test_object_of_another_call_is_not_new() -> None:
    kube = FakeKubernetes()
    await kube.create_or_get(KIND, make("req_1"))
    found, is_new = await kube.create_or_get(KIND, make("req_2"))
    assert (found["metadata"]["annotations"], is_new) == ({REQUEST_ID_ANNOTATION: "req_1"}, False)


@pytest.mark.parametrize(
    ("faults", "outcome"),
    [
        ([KubernetesUnavailable("away")] * 90, KubernetesUnavailable),
        ([WriteOutcomeUnknown("cut")] * 90, WriteOutcomeUnknown),
        ([WriteOutcomeUnknown("cut"), *[KubernetesUnavailable("x")] * 90], WriteOutcomeUnknown),
        ([WriteOutcomeUnknown("cut"), RequestRejected("quota")], WriteOutcomeUnknown),
        ([KubernetesUnavailable("away"), RequestRejected("schema")], RequestRejected),
    ],
)
async def test_create_that_fails_reports_whether_it_may_exist(
    faults: list[KubernetesError], outcome: type[KubernetesError]
) -> None:
    kube = FakeKubernetes()
    kube.order_faults("create", *map(Fault, faults))
    with pytest.raises(outcome):
        await kube.create_or_get(KIND, make())
    assert kube.list_objects(KIND) == []


async def test_existing_object_that_cannot_be_read_is_reported_as_existing() -> None:
    kube = FakeKubernetes()
    await kube.create_or_get(KIND, make("req_1"))
    kube.order_faults("get", *[Fault(KubernetesUnavailable("away"))] * 90)
    with pytest.raises(AlreadyExists):
        await kube.create_or_get(KIND, make("req_2"))


async def test_update_is_decided_again_after_a_conflict_and_a_lost_answer() -> None:
    kube = FakeKubernetes()
    await kube.create(KIND, make())
    kube.order_faults(
        "patch",
        Fault(WriteConflict("x")),
        Fault(ObjectNotFound("x")),
        Fault(WriteOutcomeUnknown("cut"), applied=True),
    )
    decided = []

    def decide(obj: Object) -> dict[str, Any] | None:
        decided.append(obj["spec"])
        return None if obj["spec"] else {"spec": {"displayName": "b"}}

    changed = await kube.update(KIND, lambda: kube.get(KIND, "key-a"), decide)
    assert changed["spec"] == {"displayName": "b"}
    assert decided == [{}, {}, {}, {"displayName": "b"}]


@in_virtual_time
async def test_update_gives_up_while_others_keep_writing() -> None:
    kube = FakeKubernetes()
    await kube.create(KIND, make())
    kube.order_faults("patch", *[Fault(WriteConflict("x"))] * 90)
    with pytest.raises(WriteConflict):
        await kube.update(KIND, lambda: kube.get(KIND, "key-a"), lambda _: {"spec": {"a": 1}})


async def test_missing_object_is_reported_by_the_read() -> None:
    kube = FakeKubernetes()
    with pytest.raises(ObjectNotFound):
        await kube.update(KIND, lambda: kube.get(KIND, "key-a"), lambda _: {})
