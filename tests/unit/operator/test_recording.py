"""Charges and archive of ended tasks while their callbacks are still tried."""

from typing import Any

import pytest

from gateway_core.api.ids import CHARGED, FOLDED_LABEL, TASK_FINALIZER
from gateway_core.api.usage import GatewayUsage
from gateway_core.tasks.archive import read_archived
from tests.fakes.clock import in_virtual_time
from tests.unit.operator.harness import QUOTE, TASKS, Simulation

URL = "https://hooks.example.com/done"
USAGES = GatewayUsage.plural
MOST_SECONDS = 10
"""Within which a charge is in every place (I12)."""


async def begin(count: int) -> tuple[Simulation, list[str]]:
    """A simulation whose receiver is away, and the names of tasks that have ended."""
    sim = await Simulation.start()
    sim.receivers.receivers[URL].will(*[503] * 100)
    names = [await sim.admit(callbackUrl=URL) for _ in range(count)]
    for name in names:
        await sim.wait(lambda name=name: sim.is_ended(name))
    return sim, names


def read_usage(sim: Simulation) -> tuple[int, int]:
    usage = sim.kube.list_objects(USAGES)
    status = [obj.get("status") or {} for obj in usage]
    return sum(s.get("chargedMicros", 0) for s in status), sum(s.get("requests", 0) for s in status)


async def read_callback(sim: Simulation, name: str) -> str | None:
    archived = await read_archived(sim.store, "demo", name)
    return None if archived is None else archived["status"]["callback"]["state"]


@in_virtual_time
async def test_charge_and_archive_do_not_wait_for_callback() -> None:
    sim, names = await begin(3)
    await sim.pass_time(MOST_SECONDS)
    assert read_usage(sim) == (3 * QUOTE, 3)
    assert await sim.balance() == (3 * QUOTE, 0)
    for name in names:
        assert await read_callback(sim, name) == "Pending"
        assert sim.status(name)["callback"]["state"] == "Pending"
    assert ("patch", TASKS) not in sim.kube.calls, "no further write of a task"


@pytest.mark.parametrize("away", ["store", "receiver alone"])
@in_virtual_time
async def test_charge_does_not_wait_for_store(away: str) -> None:
    sim, names = await begin(1)
    sim.store.away = away == "store"
    await sim.pass_time(MOST_SECONDS)
    assert read_usage(sim) == (QUOTE, 1)
    sim.store.away = False
    await sim.pass_time(60)
    assert await read_callback(sim, names[0]) == "Pending"


@pytest.mark.parametrize("restart", [False, True], ids=["same process", "another process"])
@in_virtual_time
async def test_labelled_task_is_archived_before_its_callback(restart: bool) -> None:
    """Another task's aggregation, which needed room for names, has labelled it meanwhile."""
    sim, [name] = await begin(1)
    sim.store.away = True
    await sim.pass_time(MOST_SECONDS)
    await sim.change(name, {"metadata": {"labels": {FOLDED_LABEL: CHARGED}}})
    if restart:
        await sim.restart()
    await sim.pass_time(60)
    sim.store.away = False
    await sim.pass_time(60)
    assert await read_callback(sim, name) == "Pending"
    assert read_usage(sim) == (QUOTE, 1)


@in_virtual_time
async def test_hanging_receiver_delays_no_charge() -> None:
    sim = await Simulation.start()
    sim.receivers.receivers[URL].seconds = 1000.0
    names = [await sim.admit(callbackUrl=URL) for _ in range(20)]
    await sim.wait(lambda: all(map(sim.is_ended, names)))
    await sim.pass_time(MOST_SECONDS)
    assert read_usage(sim) == (20 * QUOTE, 20)


@in_virtual_time
async def test_restart_repeats_no_write_for_pending_callbacks() -> None:
    sim, names = await begin(5)
    await sim.pass_time(MOST_SECONDS)
    sim.kube.calls.clear()
    written = dict(sim.store.modified)
    await sim.restart()
    await sim.pass_time(3)
    assert read_usage(sim) == (5 * QUOTE, 5)
    assert ("patch_status", USAGES) not in sim.kube.calls
    assert sim.store.modified == written
    for name in names:
        assert await read_callback(sim, name) == "Pending"


@in_virtual_time
async def test_deleted_task_with_pending_callback_is_charged_once() -> None:
    sim, [name] = await begin(1)
    await sim.kube.delete(TASKS, name)
    await sim.wait(lambda: not sim.is_there(name), seconds=120)
    assert read_usage(sim) == (QUOTE, 1)
    assert await read_callback(sim, name) == "Undelivered"


@in_virtual_time
async def test_labelled_task_is_closed_after_its_callback() -> None:
    """Its charge is counted, and its process was killed between the outcome and the closing."""
    sim, [name] = await begin(1)
    await sim.pass_time(MOST_SECONDS)
    await sim.change(name, {"metadata": {"labels": {FOLDED_LABEL: CHARGED}}})
    await sim.kill()
    outcome = {"work": "Settled", "callback": {"state": "Delivered"}}
    await sim.kube.patch_status(TASKS, await sim.kube.get(TASKS, name), outcome)
    await sim.boot_without_books()
    await sim.finish(name, seconds=5)
    meta = sim.history[name][-1]["metadata"]
    assert TASK_FINALIZER not in meta["finalizers"]
    assert meta["labels"][FOLDED_LABEL] != CHARGED
    assert await read_callback(sim, name) == "Delivered"
    assert read_usage(sim) == (QUOTE, 1)


@in_virtual_time
async def test_ended_recordings_leave_nothing_in_memory() -> None:
    sim, names = await begin(3)
    sim.receivers.receivers[URL].answers.clear()
    for name in names:
        await sim.finish(name, seconds=600)
    await sim.pass_time(30)
    recording: Any = sim.running.controller.recording
    assert (recording._charged, recording._archived, len(recording.queue)) == ({}, {}, 0)
