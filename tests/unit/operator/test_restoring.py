"""Runs that are restored from a backup without their status: nothing is done for them again."""

import copy
from typing import Any

import pytest

from gateway_core.api.ids import (
    CREATED_ANNOTATION,
    FOLDED_LABEL,
    TASK_PREFIX,
    IdMint,
    id_to_name,
)
from gateway_core.api.resource import Object
from gateway_core.api.times import format_precise_time
from tests.fakes.clock import in_virtual_time
from tests.fakes.upstream import FakeUpstream
from tests.unit.operator.batch_harness import BATCHES, BatchSimulation, make_lines
from tests.unit.operator.environment import read_now
from tests.unit.operator.harness import QUOTE, TASKS, Simulation

URL = "https://hooks.example.com/done"


async def restore(
    sim: Simulation, name: str, *, labels: bool = True, folded: bool = True, finalizers: bool = True
) -> None:
    """The object as `kubectl create` makes it from what `kubectl get -o yaml` has shown."""
    old: Object = sim.history[name][-1]
    if sim.is_there(name):
        sim.kube.remove(TASKS, name)
        await sim.pass_time(0.1)
    kept = {"name": name, "annotations": old["metadata"].get("annotations", {})}
    if labels:
        kept["labels"] = dict(old["metadata"]["labels"])
        if not folded:
            kept["labels"].pop(FOLDED_LABEL, None)
    if finalizers:
        kept["finalizers"] = list(old["metadata"].get("finalizers", []))
    await sim.kube.create(TASKS, {"metadata": kept, "spec": old["spec"]})


async def check_restored(sim: Simulation, name: str, before: dict[str, Any]) -> None:
    """The client's answer is back, and nothing was submitted or charged."""
    jobs = len(sim.upstream.jobs)
    await sim.wait(lambda: sim.is_ended(name) and sim.is_closed(name), seconds=200)
    status = sim.status(name)
    assert {k: status.get(k) for k in ("phase", "result", "failure", "cost", "callback")} == {
        k: before.get(k) for k in ("phase", "result", "failure", "cost", "callback")
    }
    assert len(sim.upstream.jobs) == jobs
    charged = before["chargedMicros"]
    assert await sim.balance() == (charged, 0)
    sim.counters.lose()
    await sim.open_books("demo")
    assert await sim.balance() == (charged, 0)
    usage = sim.kube.list_objects("gatewayusages")
    assert sum(obj["status"]["chargedMicros"] for obj in usage) == charged


@pytest.mark.parametrize("restart", [False, True], ids=["same process", "another process"])
@pytest.mark.parametrize("labels", [True, False], ids=["with labels", "without labels"])
@pytest.mark.parametrize("callback_url", [None, URL], ids=["no callback", "callback"])
@in_virtual_time
async def test_completed_task_gets_its_status_back(
    restart: bool, labels: bool, callback_url: str | None
) -> None:
    sim = await Simulation.start()
    name = await sim.admit(callbackUrl=callback_url)
    before = await sim.finish(name)
    attempts = len(sim.receivers.attempts)
    if restart:
        await sim.restart()
    await restore(sim, name, labels=labels, finalizers=labels)
    await check_restored(sim, name, before)
    assert len(sim.receivers.attempts) == attempts


@pytest.mark.parametrize("hours", [0, 1])
@in_virtual_time
async def test_cancelled_task_is_not_cancelled_again(hours: int) -> None:
    sim = await Simulation.start(FakeUpstream(seconds=100))
    name = await sim.run(callbackUrl=URL)
    await sim.cancel(name)
    before = await sim.finish(name)
    await sim.pass_time(hours * 3600)
    await restore(sim, name)
    await check_restored(sim, name, before)
    assert len(sim.receivers.attempts) == 1


@in_virtual_time
async def test_pending_callback_goes_on_with_its_id_and_body() -> None:
    sim = await Simulation.start()
    sim.receivers.receivers[URL].will(503)
    name = await sim.admit(callbackUrl=URL)
    await sim.wait(lambda: sim.receivers.attempts)
    await sim.pass_time(3)
    await restore(sim, name)
    before = await sim.finish(name, seconds=200)
    first, second = sim.receivers.attempts
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert first.body == second.body
    assert before["callback"]["state"] == "Delivered"
    assert await sim.balance() == (QUOTE, 0)
    # what it came to is archived too
    await restore(sim, name)
    await check_restored(sim, name, before)
    assert len(sim.receivers.attempts) == 2


async def restore_whole(sim: Simulation, name: str) -> None:
    """The object with its status, as Velero can restore it: with another uid."""
    old: Object = copy.deepcopy(sim.history[name][-1])
    sim.kube.remove(TASKS, name)
    await sim.pass_time(0.1)
    sim.kube.put(TASKS, old)


@pytest.mark.parametrize("restart", [False, True], ids=["same process", "another process"])
@in_virtual_time
async def test_charge_of_pending_callback_is_not_counted_again(restart: bool) -> None:
    sim = await Simulation.start()
    sim.receivers.receivers[URL].will(*[503] * 3)
    name = await sim.admit(callbackUrl=URL)
    await sim.wait(lambda: sim.receivers.attempts)
    await sim.pass_time(3)
    if restart:
        await sim.kill()
    await restore_whole(sim, name)
    if restart:
        sim.counters.lose()
        await sim.open_books("demo")
        await sim.boot_without_books()
    await check_restored(sim, name, await sim.finish(name, seconds=2000))
    assert len({attempt.headers["webhook-id"] for attempt in sim.receivers.attempts}) == 1


@in_virtual_time
async def test_intent_of_a_restored_task_starts_no_other_job() -> None:
    sim = await Simulation.start()
    # the job is made, and its id is lost with the process
    sim.upstream.latency = 30.0
    name = await sim.admit(deadline=7200)
    await sim.wait(lambda: sim.status(name).get("phase") == "Submitting")
    await sim.kill()
    await sim.pass_time(3600)
    sim.upstream.latency = 0.0
    await restore_whole(sim, name)
    jobs = len(sim.upstream.jobs)
    await sim.boot_without_books()
    status = await sim.finish(name)
    assert status["failure"]["code"] == "submission_unknown"
    assert len(sim.upstream.jobs) == jobs


@in_virtual_time
async def test_restored_task_that_is_not_archived_is_refused() -> None:
    sim = await Simulation.start()
    name = await sim.admit(callbackUrl=URL)
    await sim.finish(name)
    sim.store.contents.clear()
    await sim.pass_time(3600)
    await restore(sim, name)
    status = await sim.finish(name)
    assert status["failure"]["code"] == "submission_unknown"
    assert "restored without its state" in status["failure"]["message"]
    assert status["callback"]["state"] == "Undelivered"
    assert (len(sim.upstream.jobs), len(sim.receivers.attempts)) == (1, 1)
    assert await sim.balance() == (QUOTE, 0)


@in_virtual_time
async def test_task_of_another_gateway_is_refused_and_its_copy_by_another_name_is_run() -> None:
    sim = await Simulation.start()
    note = {CREATED_ANNOTATION: format_precise_time(read_now())}
    await sim.pass_time(3600)
    name = id_to_name(IdMint(b"another gateway's").mint_random(TASK_PREFIX, "demo"))
    for made in (name, "task-copied-by-hand"):
        meta = {"name": made, "annotations": note}
        await sim.kube.create(TASKS, {"metadata": meta, "spec": sim.spec()})
    assert (await sim.finish(name))["failure"]["code"] == "submission_unknown"
    assert (await sim.finish("task-copied-by-hand"))["phase"] == "Completed"
    assert len(sim.upstream.jobs) == 1


@in_virtual_time
async def test_rebuild_before_status_is_back_charges_once() -> None:
    sim = await Simulation.start()
    name = await sim.admit()
    before = await sim.finish(name)
    await sim.kill()
    await restore(sim, name, folded=False)
    sim.counters.lose()
    await sim.open_books("demo")
    assert (await sim.balance())[1] == QUOTE, "nobody knows yet that it has ended"
    await sim.boot_without_books()
    await check_restored(sim, name, before)


@in_virtual_time
async def test_new_task_costs_no_read_of_archive() -> None:
    sim = await Simulation.start()
    await sim.pass_time(200)
    read = sim.store.get
    gets = list[str]()

    async def get(key: str) -> bytes:
        gets.append(key)
        return await read(key)

    sim.store.get = get  # type: ignore[method-assign]
    name = await sim.admit()
    await sim.wait(lambda: sim.upstream.jobs)
    assert gets == []
    await sim.finish(name)


@in_virtual_time
async def test_task_that_waited_for_an_operator_is_run() -> None:
    sim = Simulation()
    name = await sim.admit(deadline=7200)
    await sim.pass_time(3600)
    await sim.boot()
    assert (await sim.finish(name))["phase"] == "Completed"


@pytest.mark.parametrize("archived", [True, False])
@in_virtual_time
async def test_ended_batch_calls_no_provider_again(archived: bool) -> None:
    sim = await BatchSimulation.start()
    name = await sim.submit(make_lines(20))
    created = {"annotations": {CREATED_ANNOTATION: format_precise_time(read_now())}}
    await sim.kube.patch(BATCHES, await sim.kube.get(BATCHES, name), {"metadata": created})
    before = await sim.finish_batch(name)
    asked, files = dict(sim.judge.asked), len(sim.kube.list_objects("gatewayfiles"))
    if not archived:
        sim.store.contents.pop(f"tasks/demo/{name}.json")
        await sim.pass_time(3600)
    obj = await sim.kube.get(BATCHES, name)
    meta = {key: obj["metadata"][key] for key in ("name", "labels", "annotations")}
    sim.kube.remove(BATCHES, name)
    await sim.pass_time(1)
    await sim.kube.create(BATCHES, {"metadata": meta, "spec": obj["spec"]})
    await sim.pass_time(30)
    status = (await sim.kube.get(BATCHES, name))["status"]
    assert status["work"] == "Settled"
    if archived:
        kept = ("phase", "counts", "outputFileName", "chargedMicros", "completionTime")
        assert {k: status.get(k) for k in kept} == {k: before.get(k) for k in kept}
    else:
        assert status["phase"] == "Failed"
        assert "restored without its state" in status["errors"][0]["message"]
    assert dict(sim.judge.asked) == asked
    assert len(sim.kube.list_objects("gatewayfiles")) == files
    assert await sim.balance() == (before["chargedMicros"], 0)
    await sim.open_books("demo")
    assert await sim.balance() == (before["chargedMicros"], 0)
