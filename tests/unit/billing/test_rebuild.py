"""Many accounts' money is rebuilt at once, as after a loss of the counters."""

import asyncio
from typing import Any

import pytest

from gateway_core.billing.counters import Ledger
from gateway_core.billing.journal import PREFIX
from gateway_core.billing.journal_store import JournalStore
from gateway_core.billing.ledger import MOST_AT_ONCE, Rebuilder, RebuildLapsed
from tests.fakes.clock import in_virtual_time
from tests.fakes.counters import REBUILD_SECONDS, FakeCounters
from tests.fakes.kubernetes import FakeKubernetes
from tests.fakes.objects import FakeObjects

MANY = 40


class Bench:
    """A rebuilder whose readings of the record and of the journal take so many seconds each."""

    def __init__(self, record_seconds: float = 1.0, journal_seconds: float = 0.0) -> None:
        self.kube, self.store, self.counters = FakeKubernetes(), FakeObjects(), FakeCounters()
        self.backlog = JournalStore(self.store)
        self.rebuilder = Rebuilder(self.kube, self.backlog, self.counters)
        self.tasks_read = self.journals_read = self.begun = self.most_begun = 0
        list_page, list_entries = self.kube.list_page, self.store.list_entries
        begin, finish = self.counters.begin_rebuild, self.counters.finish_rebuild

        async def read_page(plural: str, **options: Any) -> Any:
            self.tasks_read += plural == "gatewaytasks"
            await asyncio.sleep(record_seconds)
            self.counters.now += record_seconds
            return await list_page(plural, **options)

        async def read_entries(prefix: str) -> Any:
            self.journals_read += prefix == PREFIX
            listed = [entry async for entry in list_entries(prefix)]
            await asyncio.sleep(journal_seconds)
            for entry in listed:
                yield entry

        async def begin_rebuild(account: str) -> str | None:
            self.begun += 1
            self.most_begun = max(self.begun, self.most_begun)
            return await begin(account)

        async def finish_rebuild(account: str, token: str, ledger: Ledger) -> bool:
            self.begun -= 1
            return await finish(account, token, ledger)

        self.kube.list_page = read_page  # type: ignore[method-assign]
        self.store.list_entries = read_entries  # type: ignore[method-assign]
        self.counters.begin_rebuild = begin_rebuild  # type: ignore[method-assign]
        self.counters.finish_rebuild = finish_rebuild  # type: ignore[method-assign]


@in_virtual_time
async def test_rebuilds_of_many_accounts_are_bounded_and_share_reads() -> None:
    bench = Bench(record_seconds=0.1, journal_seconds=0.1)
    names = [f"acct-{number}" for number in range(MANY)]
    assert all(await asyncio.gather(*map(bench.rebuilder.rebuild, names)))
    assert await bench.counters.list_accounts() == sorted(names)
    assert bench.most_begun == MOST_AT_ONCE
    assert bench.journals_read <= 2 * MANY / MOST_AT_ONCE, "the journal is read by some together"


@in_virtual_time
async def test_concurrent_rebuilds_of_an_account_read_once() -> None:
    bench = Bench()
    asking = [asyncio.create_task(bench.rebuilder.rebuild("demo")) for _ in range(5)]
    await asyncio.sleep(0.1)
    asking[0].cancel()
    assert await asyncio.gather(*asking[1:]) == [True] * 4
    assert bench.tasks_read == 1


@in_virtual_time
async def test_account_rebuilt_by_another_replica_is_not_read() -> None:
    bench = Bench(record_seconds=1.0)
    asking = [asyncio.create_task(bench.rebuilder.rebuild(f"a-{n}")) for n in range(MOST_AT_ONCE)]
    await asyncio.sleep(0.1)
    late = asyncio.create_task(bench.rebuilder.rebuild("late"))
    await asyncio.sleep(0.1)
    token = await bench.counters.begin_rebuild("late")
    assert token is not None
    assert await bench.counters.finish_rebuild("late", token, Ledger(7))
    assert await late
    await asyncio.gather(*asking)
    assert bench.tasks_read == MOST_AT_ONCE
    assert (await bench.counters.read_spending("late", "")).charged == 7


@in_virtual_time
async def test_rebuild_that_takes_too_long_raises_and_can_be_repeated() -> None:
    bench = Bench(record_seconds=REBUILD_SECONDS)
    with pytest.raises(RebuildLapsed):
        await bench.rebuilder.rebuild("demo")
    # nothing is left behind that the next one would join
    with pytest.raises(RebuildLapsed):
        await bench.rebuilder.rebuild("demo")
    assert bench.tasks_read == 2
