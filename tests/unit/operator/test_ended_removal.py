"""Ended tasks, batches and Uploads: bounded by age and number, the oldest removed first."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gateway_core.api.ids import ACCOUNT_LABEL, FOLDED_LABEL, STORED_FINALIZER
from gateway_core.api.resource import Object
from gateway_core.api.times import format_label_time, format_time
from gateway_core.kube.client import Page
from gateway_core.kube.errors import KubernetesUnavailable, VersionExpired, WriteOutcomeUnknown
from gateway_operator.context import Failpoints
from gateway_operator.retention.objects import (
    BATCHES,
    PER_SECOND,
    TASKS,
    UPLOADS,
    Deletions,
    EndedKind,
    EndedRemoval,
)
from tests.fakes.clock import in_virtual_time
from tests.fakes.kubernetes import FakeKubernetes, Fault
from tests.unit.operator.environment import StepKills
from tests.unit.operator.steps import REMOVAL_STEPS

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
DAY = 86_400.0


class Record(FakeKubernetes):
    """The record, with objects of a given age."""

    def __init__(self) -> None:
        super().__init__()
        self.pages: list[Mapping[str, Any]] = []

    def put_ended(
        self,
        kind: EndedKind,
        number: int,
        age: float,
        *,
        account: str = "demo",
        work: str = "Settled",
        **meta: Any,
    ) -> Object:
        self.clock = lambda: format_time(NOW - timedelta(seconds=age))
        labels = {ACCOUNT_LABEL: account}
        if kind.label_selector and work:
            labels[FOLDED_LABEL] = format_label_time(NOW - timedelta(seconds=age))
        metadata = {"name": f"{account}-{number}", "labels": labels, **meta}
        obj: Object = {"metadata": metadata, "status": {"work": work} if work else {}}
        return self.put(kind.plural, obj)

    async def list_page(self, *given: Any, **named: Any) -> Page:
        self.pages.append(named)
        return await super().list_page(*given, **named)

    def names(self, kind: EndedKind) -> set[str]:
        return {obj["metadata"]["name"] for obj in self.list_objects(kind.plural)}


def build(
    kube: Record,
    kind: EndedKind,
    *,
    most: int = 3,
    failpoints: Failpoints | None = None,
    **named: Any,
) -> EndedRemoval:
    deletions = Deletions(kube, failpoints or Failpoints())
    named = {"kept_seconds": DAY, "most": most, **named}
    return EndedRemoval(kube, deletions, kind, lambda: NOW, **named)


KINDS = pytest.mark.parametrize(
    "kind", [UPLOADS, BATCHES, TASKS], ids=["uploads", "batches", "tasks"]
)


@pytest.mark.parametrize("kind", [UPLOADS, BATCHES], ids=["uploads", "batches"])
@in_virtual_time
async def test_oldest_beyond_number_of_each_account_are_removed(kind: EndedKind) -> None:
    kube = Record()
    for number in range(6):
        kube.put_ended(kind, number, 100 + number)
    for number in range(3):
        kube.put_ended(kind, number, 5000, account="other")
    removal = build(kube, kind)
    assert await removal.sweep() == 3
    wanted = {f"demo-{n}" for n in range(3)} | {f"other-{n}" for n in range(3)}
    assert kube.names(kind) == wanted
    assert await removal.sweep() == 0


@in_virtual_time
async def test_number_of_tasks_counts_all_accounts_and_is_reported() -> None:
    kube, kept, removed = Record(), list[int](), list[int]()
    for number in range(5):
        kube.put_ended(TASKS, number, 100 + number)
        kube.put_ended(TASKS, number, 200 + number, account="other")
    removal = build(kube, TASKS, most=4, note_kept=kept.append, note_removed=removed.append)
    assert await removal.sweep() == 6
    assert kube.names(TASKS) == {f"demo-{number}" for number in range(4)}
    assert (kept, sum(removed)) == ([4], 6)


@pytest.mark.parametrize("rules", [{"kept_seconds": 0}, {"most": 0}])
@in_virtual_time
async def test_objects_younger_than_the_least_age_stay(rules: dict[str, Any]) -> None:
    kube = Record()
    kube.put_ended(TASKS, 0, 599)
    kube.put_ended(TASKS, 1, 600)
    assert await build(kube, TASKS, least_seconds=600, **rules).sweep() == 1
    assert kube.names(TASKS) == {"demo-0"}


@in_virtual_time
async def test_list_that_expires_during_removals_is_begun_anew() -> None:
    kube = Record()
    for number in range(1200):
        kube.put_ended(TASKS, number, 2 * DAY)
    kube.order_faults("list_page", None, Fault(VersionExpired("compacted")))
    assert await build(kube, TASKS).sweep() == 1200
    assert kube.names(TASKS) == set()


@in_virtual_time
async def test_tasks_without_a_time_of_aggregation_stay() -> None:
    kube = Record()
    kube.put_ended(TASKS, 0, 2 * DAY, labels={})
    kube.put_ended(TASKS, 1, 2 * DAY, labels={FOLDED_LABEL: "by-hand"})
    assert await build(kube, TASKS, most=0).sweep() == 0


@KINDS
@in_virtual_time
async def test_objects_beyond_their_time_are_removed(kind: EndedKind) -> None:
    kube = Record()
    for number, age in enumerate((DAY - 1, DAY, 10 * DAY)):
        kube.put_ended(kind, number, age)
    assert await build(kube, kind).sweep() == 2
    assert kube.names(kind) == {"demo-0"}


@KINDS
@in_virtual_time
async def test_objects_that_are_not_settled_stay_and_are_not_counted(kind: EndedKind) -> None:
    kube = Record()
    for number in range(20):
        kube.put_ended(kind, number, 40 * DAY, work="")
    for number in range(20, 23):
        kube.put_ended(kind, number, 10)
    assert await build(kube, kind).sweep() == 0
    assert len(kube.names(kind)) == 23


@in_virtual_time
async def test_object_with_finalizer_is_resumed_not_removed() -> None:
    kube, resumed = Record(), list[str]()
    kube.put_ended(UPLOADS, 0, 40 * DAY, finalizers=[STORED_FINALIZER])
    assert await build(kube, UPLOADS, resume=resumed.append).sweep() == 0
    assert resumed == ["demo-0"]
    assert kube.names(UPLOADS) == {"demo-0"}


@in_virtual_time
async def test_object_that_changes_while_it_is_listed_stays() -> None:
    kube = Record()
    for number in range(5):
        kube.put_ended(UPLOADS, number, 100 + number)
    changed = kube.put_ended(UPLOADS, 9, 900)

    class Changing(Record):
        async def delete(self, plural: str, name: str, **named: Any) -> Object | None:
            if name == "demo-9" and named["version"] == changed["metadata"]["resourceVersion"]:
                kube.put(UPLOADS.plural, changed)
            return await kube.delete(plural, name, **named)

        async def list_page(self, *given: Any, **named: Any) -> Page:
            return await kube.list_page(*given, **named)

    assert await build(Changing(), UPLOADS).sweep() == 2
    assert "demo-9" in kube.names(UPLOADS)


@in_virtual_time
async def test_sweep_that_was_cut_short_is_continued_by_the_next() -> None:
    kube = Record()
    for number in range(40):
        kube.put_ended(BATCHES, number, 100 + number)
    kube.order_faults("delete", None, None, Fault(KubernetesUnavailable("away")))
    removal = build(kube, BATCHES)
    with pytest.raises(KubernetesUnavailable):
        await removal.sweep()
    kube.order_faults("delete", Fault(WriteOutcomeUnknown("no answer"), applied=True))
    await removal.sweep()
    assert kube.names(BATCHES) == {"demo-0", "demo-1", "demo-2"}


@in_virtual_time
async def test_kills_around_removals_remove_what_is_due_and_no_more() -> None:
    kube = Record()
    for number in range(8):
        kube.put_ended(TASKS, number, 100 + number)
    failpoints = StepKills(REMOVAL_STEPS * 2)
    for _ in range(4):
        with pytest.raises(asyncio.CancelledError):
            await build(kube, TASKS, failpoints=failpoints).sweep()
        assert {"demo-0", "demo-1", "demo-2"} <= kube.names(TASKS)
        failpoints.is_dead = False
    await build(kube, TASKS, failpoints=failpoints).sweep()
    assert not +failpoints.left
    assert kube.names(TASKS) == {"demo-0", "demo-1", "demo-2"}


@in_virtual_time
async def test_two_owners_at_once_remove_no_more_than_one() -> None:
    kube = Record()
    for number in range(50):
        kube.put_ended(UPLOADS, number, 100 + number)

    removed = await asyncio.gather(*(build(kube, UPLOADS).sweep() for _ in range(2)))
    assert sum(removed) >= 47
    assert kube.names(UPLOADS) == {"demo-0", "demo-1", "demo-2"}


@in_virtual_time
async def test_only_metadata_is_listed_and_accounts_within_their_number_once() -> None:
    kube = Record()
    for account in range(30):
        kube.put_ended(BATCHES, 0, 10, account=f"a{account}")
    for number in range(4):
        kube.put_ended(BATCHES, number, 10 + number)
    await build(kube, BATCHES).sweep()
    assert all(page["metadata_only"] for page in kube.pages)
    assert [page["label_selector"] for page in kube.pages] == [
        FOLDED_LABEL,
        f"{FOLDED_LABEL},{ACCOUNT_LABEL}=demo",
    ]


@in_virtual_time
async def test_removal_keeps_up_with_full_rate_of_many_accounts() -> None:
    kube = Record()
    for number in range(1200):
        kube.put_ended(UPLOADS, number, 100 + number)
    begun = asyncio.get_running_loop().time()
    assert await build(kube, UPLOADS, most=1).sweep() == 1199
    taken = asyncio.get_running_loop().time() - begun
    assert taken <= 1199 / PER_SECOND + 1, "a paced deletion, far above 10 a second of one account"
