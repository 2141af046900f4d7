"""Repairs: what the watch did not show, what ended and was not closed, holds without a task."""

from dataclasses import replace

import pytest

from gateway_core.api.ids import SHARD_LABEL, SHARDS, shard_of
from gateway_core.billing.counters import Hold
from gateway_core.kube.errors import KubernetesUnavailable
from gateway_core.redis.link import CountersStale
from gateway_operator.shards import Shards
from gateway_operator.tasks.resync import HOLD_SECONDS, Resync
from tests.fakes.clock import in_virtual_time
from tests.fakes.kubernetes import Fault
from tests.fakes.upstream import FakeUpstream
from tests.unit.billing.journal_harness import make_record, store_object
from tests.unit.operator.harness import QUOTE, TASKS, Operator, Stage, read_now


def build_resync(stage: Stage, operator: Operator, shards: Shards) -> Resync:
    context = replace(operator.context, shards=shards)
    return Resync(context, operator.controller, stage.counters)


class TestOpenTasks:
    @in_virtual_time
    async def test_a_task_the_watch_never_showed_is_found(self) -> None:
        stage = Stage()
        operator = await stage.boot()
        operator.feed.deaf = True
        name = await stage.admit()
        await stage.finish(name, seconds=200)
        assert stage.status(name)["phase"] == "Completed"
        assert operator.resync.missed == 1

    @in_virtual_time
    async def test_a_change_the_watch_never_showed_is_found(self) -> None:
        stage = Stage(FakeUpstream(seconds=500))
        operator = await stage.boot()
        name = await stage.admit()
        await stage.wait(lambda: stage.status(name).get("phase") == "Running")
        operator.feed.deaf = True
        await stage.cancel(name)
        status = await stage.finish(name, seconds=200)
        assert status["failure"]["code"] == "cancelled"

    @in_virtual_time
    async def test_a_task_that_vanished_unseen_is_forgotten(self) -> None:
        stage = Stage(FakeUpstream(seconds=5000))
        operator = await stage.boot()
        name = await stage.admit(deadline=6000)
        await stage.wait(lambda: stage.status(name).get("phase") == "Running")
        operator.feed.deaf = True
        stage.kube.remove(TASKS, name)
        await stage.wait(lambda: len(operator.cache) == 0, seconds=200)

    @in_virtual_time
    async def test_events_that_are_under_way_are_no_repair(self) -> None:
        stage = Stage(lag=5)
        operator = await stage.boot()
        for _ in range(30):
            await stage.admit(reserved=1)
            await stage.pass_time(7)
        await stage.pass_time(200)
        assert operator.resync.missed == 0
        assert operator.metrics.repairs._value.get() == 0


class TestEndedTasks:
    @in_virtual_time
    async def test_a_task_that_was_not_closed_is_closed_at_the_start(self) -> None:
        stage = Stage()
        await stage.boot()
        name = await stage.admit()
        await stage.wait(lambda: stage.is_ended(name))
        await stage.restart()
        await stage.finish(name, seconds=5)

    @in_virtual_time
    async def test_a_look_that_failed_is_repeated_soon(self) -> None:
        stage = Stage()
        await stage.boot()
        name = await stage.admit()
        await stage.wait(lambda: stage.is_ended(name))
        await stage.kill()
        stage.kube.away = True
        await stage.boot_without_books()
        await stage.pass_time(10)
        stage.kube.away = False
        await stage.finish(name, seconds=70)


class TestHolds:
    async def stray(self, stage: Stage, name: str) -> None:
        await stage.counters.hold("demo", Hold(name, 500))

    @in_virtual_time
    async def test_one_that_was_never_recorded_is_released(self) -> None:
        stage = Stage()
        await stage.boot()
        await self.stray(stage, "task-never-made")
        await stage.pass_time(HOLD_SECONDS - 5)
        assert await stage.balance() == (0, 500)
        await stage.pass_time(70)
        assert await stage.balance() == (0, 0)

    @in_virtual_time
    async def test_one_of_a_task_that_completed_is_charged(self) -> None:
        stage = Stage()
        await stage.boot()
        name = await stage.admit()
        stage.counters.away = True
        await stage.finish(name)
        stage.counters.away = False
        await stage.pass_time(HOLD_SECONDS + 70)
        assert await stage.balance() == (QUOTE, 0)

    @in_virtual_time
    async def test_also_if_the_object_is_gone_by_then(self) -> None:
        stage = Stage()
        await stage.boot()
        name = await stage.admit()
        stage.counters.away = True
        await stage.finish(name)
        await stage.kube.delete(TASKS, name)
        stage.counters.away = False
        await stage.pass_time(HOLD_SECONDS + 70)
        assert await stage.balance() == (QUOTE, 0)

    @in_virtual_time
    async def test_one_of_a_task_under_way_stays(self) -> None:
        stage = Stage(FakeUpstream(seconds=500))
        await stage.boot()
        name = await stage.admit()
        await stage.pass_time(400)
        assert await stage.balance() == (0, QUOTE)
        await stage.finish(name, seconds=200)
        assert await stage.balance() == (QUOTE, 0)

    @in_virtual_time
    async def test_one_of_a_call_whose_process_is_gone_gives_way_to_the_record(self) -> None:
        stage = Stage()
        await stage.boot()
        for number in (1, 2):
            await self.stray(stage, f"call-{number}")
        await self.stray(stage, "task-never-made")
        # its process reached the store, and the counters no more
        record = make_record(1, 30, time=read_now(), guardrail_names=())
        await store_object(stage.store, "p", 1, record)
        await stage.pass_time(HOLD_SECONDS + 70)
        with pytest.raises(CountersStale):
            await stage.balance()
        await stage.open_books("demo")
        assert await stage.balance() == (30, 0)

    @in_virtual_time
    async def test_only_the_owner_of_the_tasks_shard_looks(self) -> None:
        stage = Stage()
        operator = await stage.boot()
        await stage.kill()
        await self.stray(stage, "task-never-made")
        await stage.pass_time(HOLD_SECONDS + 5)
        for shard in range(SHARDS):
            resync = build_resync(stage, operator, Shards(frozenset({shard})))
            ended = await resync.sweep_holds()
            assert ended == (shard == shard_of("task-never-made"))


class TestShards:
    @pytest.mark.parametrize(
        ("label", "owner"), [("1", 1), ("15", 15), (None, 0), ("16", 0), ("nonsense", 0), ("", 0)]
    )
    def test_a_task_is_its_shards_owners(self, label: str | None, owner: int) -> None:
        @in_virtual_time
        async def run() -> None:
            stage = Stage()
            operator = await stage.boot()
            await stage.kill()
            labels = {} if label is None else {SHARD_LABEL: label}
            metadata = {"name": "task-odd", "labels": labels}
            await stage.kube.create(TASKS, {"metadata": metadata, "spec": stage.spec()})
            for shard in range(16):
                resync = build_resync(stage, operator, Shards(frozenset({shard})))
                found = [meta["name"] async for meta in resync._list("")]
                assert found == (["task-odd"] if shard == owner else [])

        run()


class TestFaults:
    @in_virtual_time
    async def test_nothing_that_fails_ends_it(self) -> None:
        stage = Stage()
        operator = await stage.boot()
        errors = [KubernetesUnavailable("away"), RuntimeError("odd")] * 5
        stage.kube.order_faults("list_page", *(Fault(error) for error in errors))
        stage.counters.away = True
        await stage.pass_time(600)
        assert operator.is_running, operator.failure
        stage.counters.away = False
        operator.feed.deaf = True
        await stage.finish(await stage.admit(), seconds=200)
