"""Files, uploads and batches that wait for the object store, Redis or a turn say so."""

import asyncio
from typing import Any

from gateway_core.fair_semaphore import FairSemaphore
from gateway_operator.batches.store import TURN
from gateway_operator.outages import PATIENCE_SECONDS, STORE
from tests.fakes.clock import in_virtual_time
from tests.unit.operator.batch_harness import BATCHES, BatchSimulation, Judge, make_lines
from tests.unit.operator.file_harness import FILES, UPLOADS, Simulation

LONG = 4 * PATIENCE_SECONDS


def read_condition(obj: Any, kind: str) -> tuple[str, str, str]:
    """Status, reason and message of a condition; empty where it was not written."""
    for condition in ((obj or {}).get("status") or {}).get("conditions") or ():
        if condition["type"] == kind:
            return condition["status"], condition["reason"], condition["message"]
    return "", "", ""


def list_reasons(sim: Any, name: str) -> set[str]:
    events = (*sim.kube.progress, *sim.kube.events)
    return {why for subject, why, _ in events if subject == name}


@in_virtual_time
async def test_unchecked_file_waits_for_the_store_until_it_answers() -> None:
    sim = await Simulation.start()
    name = sim.name_file()
    sim.store.away = True
    await sim.kube.create(FILES, sim.build_file(name, b"bytes"))
    await asyncio.sleep(PATIENCE_SECONDS / 2)
    assert sim.ready(name) == ("", ""), "a short outage is not shown"
    await asyncio.sleep(LONG)
    waiting = ("Unknown", "WaitingForStore", STORE)
    assert read_condition(sim.find(FILES, name), "Ready") == waiting
    assert list_reasons(sim, name) == {"WaitingForStore"}
    sim.store.away = False
    await sim.wait(lambda: sim.ready(name) == ("False", "BytesMissing"))


@in_virtual_time
async def test_expired_upload_waits_for_the_store_with_its_parts() -> None:
    sim = await Simulation.start()
    name = await sim.add_upload(b"12345")
    sim.store.away = True
    await asyncio.sleep(3600 + LONG)
    waiting = ("Unknown", "WaitingForStore", STORE)
    assert read_condition(sim.find(UPLOADS, name), "Succeeded") == waiting
    assert list_reasons(sim, name) == {"WaitingForStore"}
    sim.store.away = False
    await sim.wait(lambda: sim.is_settled(name), seconds=300)
    assert read_condition(sim.find(UPLOADS, name), "Succeeded")[:2] == ("False", "Expired")


@in_virtual_time
async def test_batch_waits_for_the_store_before_during_and_after_its_run() -> None:
    sim = await BatchSimulation.start(Judge(latency=1.0))
    name = await sim.submit(make_lines(20))

    def shows() -> tuple[str, str, bool]:
        _, reason, message = read_condition(sim.kube.find(BATCHES, name), "Succeeded")
        return sim.batch_status(name).get("phase", ""), reason, message.startswith(STORE)

    async def wait_for(phase: str) -> None:
        await sim.wait(lambda: sim.batch_status(name).get("phase") == phase)
        sim.store.away = True
        await sim.wait(lambda: shows() == (phase, "WaitingForStore", True))
        assert "WaitingForStore" in list_reasons(sim, name)
        sim.store.away = False

    sim.store.away = True
    await sim.wait(lambda: shows()[1:] == ("WaitingForStore", True))
    sim.store.away = False
    for phase in ("InProgress", "Finalizing"):
        await wait_for(phase)
    status = await sim.finish_batch(name)
    assert (status["phase"], status["counts"]["completed"]) == ("Completed", 20)
    assert read_condition(sim.kube.find(BATCHES, name), "Succeeded")[:2] == ("True", "Completed")


@in_virtual_time
async def test_finalizing_batch_shows_that_it_waits_for_its_turn() -> None:
    sim = await BatchSimulation.start()
    slots = sim.running.batches.slots.endings
    slots._places = FairSemaphore(1)
    release = asyncio.Event()

    async def occupy() -> None:
        async with slots.take("other", "batch-other"):
            await release.wait()

    other = asyncio.create_task(occupy())
    name = await sim.submit(make_lines(2))
    await sim.wait(
        lambda: (
            read_condition(sim.kube.find(BATCHES, name), "Succeeded")
            == ("Unknown", "WaitingForSlot", TURN)
        )
    )
    release.set()
    assert (await sim.finish_batch(name))["phase"] == "Completed"
    await other
