"""Ended Uploads and batches: bounded by number for each account, the oldest removed first."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gateway_core.api.ids import ACCOUNT_LABEL, FOLDED_LABEL, STORED_FINALIZER
from gateway_core.api.times import format_label_time, format_time
from gateway_core.kube.records import Object, Page, RecordUnavailable
from gateway_operator.failpoints import Failpoints
from gateway_operator.retention.deletions import PER_SECOND, Deletions
from gateway_operator.retention.ended import BATCHES, UPLOADS, EndedKind, EndedRemoval
from tests.fakes.clock import in_virtual_time
from tests.fakes.records import FakeRecords, Fault

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
DAY = 86_400.0


class Record(FakeRecords):
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
        """An object that ended `age` seconds ago."""
        self.clock = lambda: format_time(NOW - timedelta(seconds=age))
        labels = {ACCOUNT_LABEL: account}
        if kind is BATCHES and work:
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
    records: Record, kind: EndedKind, *, most: int = 3, resumed: list[str] | None = None
) -> EndedRemoval:
    return EndedRemoval(
        records,
        Deletions(records, Failpoints()),
        kind,
        lambda: NOW,
        kept_seconds=DAY,
        most=most,
        resume=(resumed if resumed is not None else []).append,
    )


KINDS = pytest.mark.parametrize("kind", [UPLOADS, BATCHES], ids=["uploads", "batches"])


@KINDS
def test_oldest_beyond_number_of_each_account_are_removed(kind: EndedKind) -> None:
    @in_virtual_time
    async def run() -> None:
        records = Record()
        for number in range(6):
            records.put_ended(kind, number, 100 + number)
        for number in range(3):
            records.put_ended(kind, number, 5000, account="other")
        removal = build(records, kind)
        assert await removal.sweep() == 3
        wanted = {f"demo-{n}" for n in range(3)} | {f"other-{n}" for n in range(3)}
        assert records.names(kind) == wanted
        assert await removal.sweep() == 0

    run()


@KINDS
def test_objects_beyond_their_time_are_removed(kind: EndedKind) -> None:
    @in_virtual_time
    async def run() -> None:
        records = Record()
        for number, age in enumerate((DAY - 1, DAY, 10 * DAY)):
            records.put_ended(kind, number, age)
        assert await build(records, kind).sweep() == 2
        assert records.names(kind) == {"demo-0"}

    run()


@KINDS
def test_objects_that_are_not_settled_stay_and_are_not_counted(kind: EndedKind) -> None:
    @in_virtual_time
    async def run() -> None:
        records = Record()
        for number in range(20):
            records.put_ended(kind, number, 40 * DAY, work="")
        for number in range(20, 23):
            records.put_ended(kind, number, 10)
        assert await build(records, kind).sweep() == 0
        assert len(records.names(kind)) == 23

    run()


@in_virtual_time
async def test_object_with_finalizer_is_resumed_not_removed() -> None:
    records, resumed = Record(), list[str]()
    records.put_ended(UPLOADS, 0, 40 * DAY, finalizers=[STORED_FINALIZER])
    assert await build(records, UPLOADS, resumed=resumed).sweep() == 0
    assert resumed == ["demo-0"]
    assert records.names(UPLOADS) == {"demo-0"}


@in_virtual_time
async def test_object_that_changes_while_it_is_listed_stays() -> None:
    records = Record()
    for number in range(5):
        records.put_ended(UPLOADS, number, 100 + number)
    changed = records.put_ended(UPLOADS, 9, 900)

    class Changing(Record):
        async def delete(self, plural: str, name: str, **named: Any) -> Object | None:
            if name == "demo-9" and named["version"] == changed["metadata"]["resourceVersion"]:
                records.put(UPLOADS.plural, changed)
            return await records.delete(plural, name, **named)

        async def list_page(self, *given: Any, **named: Any) -> Page:
            return await records.list_page(*given, **named)

    assert await build(Changing(), UPLOADS).sweep() == 2
    assert "demo-9" in records.names(UPLOADS)


@in_virtual_time
async def test_sweep_that_was_cut_short_is_continued_by_the_next() -> None:
    records = Record()
    for number in range(40):
        records.put_ended(BATCHES, number, 100 + number)
    records.order_faults("delete", None, None, Fault(RecordUnavailable("away")))
    removal = build(records, BATCHES)
    with pytest.raises(RecordUnavailable):
        await removal.sweep()
    await removal.sweep()
    assert records.names(BATCHES) == {"demo-0", "demo-1", "demo-2"}


@in_virtual_time
async def test_two_owners_at_once_remove_no_more_than_one() -> None:
    records = Record()
    for number in range(50):
        records.put_ended(UPLOADS, number, 100 + number)

    removed = await asyncio.gather(*(build(records, UPLOADS).sweep() for _ in range(2)))
    assert sum(removed) >= 47
    assert records.names(UPLOADS) == {"demo-0", "demo-1", "demo-2"}


@in_virtual_time
async def test_only_metadata_is_listed_and_accounts_within_their_number_once() -> None:
    records = Record()
    for account in range(30):
        records.put_ended(BATCHES, 0, 10, account=f"a{account}")
    for number in range(4):
        records.put_ended(BATCHES, number, 10 + number)
    await build(records, BATCHES).sweep()
    assert all(page["metadata_only"] for page in records.pages)
    assert [page["label_selector"] for page in records.pages] == [
        FOLDED_LABEL,
        f"{FOLDED_LABEL},{ACCOUNT_LABEL}=demo",
    ]


@in_virtual_time
async def test_removal_keeps_up_with_full_rate_of_many_accounts() -> None:
    records = Record()
    for number in range(1200):
        records.put_ended(UPLOADS, number, 100 + number)
    begun = asyncio.get_running_loop().time()
    assert await build(records, UPLOADS, most=1).sweep() == 1199
    taken = asyncio.get_running_loop().time() - begun
    assert taken <= 1199 / PER_SECOND + 1, "a paced deletion, far above 10 a second of one account"
