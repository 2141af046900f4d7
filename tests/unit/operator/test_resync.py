"""Repairs: what the watch did not show, what ended and was not closed, holds without a task."""

from dataclasses import replace

import pytest

from gateway_core.api.ids import SHARD_LABEL, SHARDS, shard_of
from gateway_core.billing.counters import Hold
from gateway_core.kube.errors import KubernetesUnavailable
from gateway_core.redis.link import CountersStale
from gateway_operator.context import Shards
from gateway_operator.tasks.resync import HOLD_SECONDS, Resync
from tests.fakes.clock import in_virtual_time
from tests.fakes.kubernetes import Fault
from tests.fakes.upstream import FakeUpstream
from tests.unit.billing.journal_harness import make_record, store_object
from tests.unit.operator.harness import QUOTE, TASKS, Operator, Simulation, read_now


def build_resync(sim: Simulation, operator: Operator, shards: Shards) -> Resync:
    context = replace(operator.context, shards=shards)
    return Resync(context, operator.controller, sim.counters)


class TestOpenTasks:
    @in_virtual_time
    async def test_task_missed_by_watch_is_found(self) -> None:
        sim = Simulation()
        operator = await sim.boot()
        operator.feed.deaf = True
        name = await sim.admit()
        await sim.finish(name, seconds=200)
        assert sim.status(name)["phase"] == "Completed"
        assert operator.resync.missed == 1

    @in_virtual_time
    async def test_change_missed_by_watch_is_found(self) -> None:
        sim = Simulation(FakeUpstream(seconds=500))
        operator = await sim.boot()
        name = await sim.run()
        operator.feed.deaf = True
        await sim.cancel(name)
        status = await sim.finish(name, seconds=200)
        assert status["failure"]["code"] == "cancelled"

    @in_virtual_time
    async def test_task_deleted_unseen_is_forgotten(self) -> None:
        sim = Simulation(FakeUpstream(seconds=5000))
        operator = await sim.boot()
        name = await sim.run(deadline=6000)
        operator.feed.deaf = True
        sim.kube.remove(TASKS, name)
        await sim.wait(lambda: len(operator.cache) == 0, seconds=200)

    @in_virtual_time
    async def test_delayed_events_are_no_repair(self) -> None:
        sim = Simulation(lag=5)
        operator = await sim.boot()
        for _ in range(30):
            await sim.admit(reserved=1)
            await sim.pass_time(7)
        await sim.pass_time(200)
        assert operator.resync.missed == 0
        assert operator.metrics.repairs._value.get() == 0


class TestEndedTasks:
    @in_virtual_time
    async def test_failed_sweep_is_repeated_soon(self) -> None:
        sim = await Simulation.start()
        name = await sim.admit()
        await sim.wait(lambda: sim.is_ended(name))
        await sim.kill()
        sim.kube.away = True
        await sim.boot_without_books()
        await sim.pass_time(10)
        sim.kube.away = False
        await sim.finish(name, seconds=70)


class TestHolds:
    async def stray(self, sim: Simulation, name: str) -> None:
        await sim.counters.hold("demo", Hold(name, 500))

    @in_virtual_time
    async def test_reservation_without_object_is_released(self) -> None:
        sim = await Simulation.start()
        await self.stray(sim, "task-never-made")
        await sim.pass_time(HOLD_SECONDS - 5)
        assert await sim.balance() == (0, 500)
        await sim.pass_time(70)
        assert await sim.balance() == (0, 0)

    @in_virtual_time
    async def test_reservation_of_archived_task_is_charged(self) -> None:
        sim = await Simulation.start()
        name = await sim.admit()
        sim.counters.away = True
        await sim.finish(name)
        await sim.kube.delete(TASKS, name)
        sim.counters.away = False
        await sim.pass_time(HOLD_SECONDS + 70)
        assert await sim.balance() == (QUOTE, 0)

    @in_virtual_time
    async def test_reservation_of_running_task_stays(self) -> None:
        sim = await Simulation.start(FakeUpstream(seconds=500))
        name = await sim.admit()
        await sim.pass_time(400)
        assert await sim.balance() == (0, QUOTE)
        await sim.finish(name, seconds=200)
        assert await sim.balance() == (QUOTE, 0)

    @in_virtual_time
    async def test_reservation_of_dead_call_makes_account_stale(self) -> None:
        sim = await Simulation.start()
        for number in (1, 2):
            await self.stray(sim, f"call-{number}")
        await self.stray(sim, "task-never-made")
        # its process reached the store, and the counters no more
        record = make_record(1, 30, time=read_now(), guardrail_names=())
        await store_object(sim.store, "p", 1, record)
        await sim.pass_time(HOLD_SECONDS + 70)
        with pytest.raises(CountersStale):
            await sim.balance()
        await sim.open_books("demo")
        assert await sim.balance() == (30, 0)

    @in_virtual_time
    async def test_only_shard_owner_sweeps_reservations(self) -> None:
        sim = Simulation()
        operator = await sim.boot()
        await sim.kill()
        await self.stray(sim, "task-never-made")
        await sim.pass_time(HOLD_SECONDS + 5)
        for shard in range(SHARDS):
            resync = build_resync(sim, operator, Shards(frozenset({shard})))
            ended = await resync.sweep_holds()
            assert ended == (shard == shard_of("task-never-made"))


class TestShards:
    @pytest.mark.parametrize(
        ("label", "owner"), [("1", 1), ("15", 15), (None, 0), ("16", 0), ("nonsense", 0), ("", 0)]
    )
    @in_virtual_time
    async def test_only_shard_owner_repairs_tasks(self, label: str | None, owner: int) -> None:
        sim = Simulation()
        operator = await sim.boot()
        await sim.kill()
        labels = {} if label is None else {SHARD_LABEL: label}
        metadata = {"name": "task-odd", "labels": labels}
        await sim.kube.create(TASKS, {"metadata": metadata, "spec": sim.spec()})
        for shard in range(16):
            resync = build_resync(sim, operator, Shards(frozenset({shard})))
            found = [meta["name"] async for meta in resync._list("")]
            assert found == (["task-odd"] if shard == owner else [])


class TestFaults:
    @in_virtual_time
    async def test_failures_do_not_end_the_sweeps(self) -> None:
        sim = Simulation()
        operator = await sim.boot()
        errors = [KubernetesUnavailable("away"), RuntimeError("odd")] * 5
        sim.kube.order_faults("list_page", *(Fault(error) for error in errors))
        sim.counters.away = True
        await sim.pass_time(600)
        assert operator.is_running, operator.failure
        sim.counters.away = False
        operator.feed.deaf = True
        await sim.finish(await sim.admit(), seconds=200)
