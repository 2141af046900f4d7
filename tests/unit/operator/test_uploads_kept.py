"""Uploads: ended by the clock, and settled so that one File or nothing is left (I5, I6, I9)."""

import asyncio
from typing import Any

import pytest

from gateway_core.api.ids import STORED_FINALIZER
from gateway_core.api.resource import part_key
from gateway_core.files.files import FileRecorder
from gateway_core.files.uploads import compose_file
from gateway_operator.context import Failpoints
from gateway_operator.retention.objects import UPLOADS as KIND
from gateway_operator.retention.objects import Deletions, EndedRemoval, RetentionRules
from gateway_operator.uploads.controller import Settlement
from tests.fakes.clock import in_virtual_time
from tests.unit.operator.environment import read_now
from tests.unit.operator.file_harness import (
    BATCHES,
    DAY,
    FILES,
    UPLOADS,
    Controllers,
    Simulation,
)
from tests.unit.operator.steps import COMPLETION_STEPS, EXPIRY_STEPS


def build_removal(sim: Simulation, controllers: Controllers) -> EndedRemoval:
    return EndedRemoval(
        sim.kube,
        Deletions(sim.kube, Failpoints()),
        KIND,
        read_now,
        kept_seconds=RetentionRules().uploads,
        most=1000,
        resume=controllers.uploads.queue.add,
    )


def told(sim: Simulation, name: str) -> dict[str, tuple[str, str]]:
    conditions = sim.find(UPLOADS, name)["status"]["conditions"]
    return {c["type"]: (c["status"], c["reason"]) for c in conditions}


@in_virtual_time
async def test_uncompleted_upload_expires_after_an_hour():
    sim = await Simulation.start()
    name = await sim.add_upload(b"12345", b"678")
    await asyncio.sleep(3598)
    assert sim.find(UPLOADS, name)["spec"]["outcome"] == "Pending"
    assert await sim.used() == 8
    await sim.wait(lambda: sim.is_settled(name), seconds=5)
    obj = sim.find(UPLOADS, name)
    assert (obj["spec"]["outcome"], obj["status"]["phase"]) == ("Expired", "Expired")
    assert told(sim, name) == {"Succeeded": ("False", "Expired"), "Finished": ("True", "Expired")}
    assert STORED_FINALIZER not in obj["metadata"]["finalizers"]
    assert sim.store.contents == {}
    assert await sim.used() == 0


@in_virtual_time
async def test_cancelled_upload_leaves_no_part_and_no_reservation():
    sim = await Simulation.start()
    name = await sim.add_upload(b"12345")
    other = await sim.add_upload(b"stays")
    await sim.change(UPLOADS, name, {"spec": {"outcome": "Cancelled"}})
    await sim.wait(lambda: sim.is_settled(name))
    assert sim.list_parts(name) == []
    assert len(sim.list_parts(other)) == 1
    assert await sim.used() == 5


@in_virtual_time
async def test_completed_upload_makes_one_file_and_drops_other_parts():
    sim = await Simulation.start()
    name = await sim.add_upload(b"12345", b"678")
    first, second = sim.list_parts(name)
    retried = await sim.add_part(name, b"12345")
    file = await sim.complete(name, second, first)
    await sim.wait(lambda: sim.is_settled(name))
    obj = sim.find(FILES, file)
    keys = [segment["key"] for segment in obj["spec"]["request"]["segments"]]
    assert keys == [part_key("demo", name, second), part_key("demo", name, first)]
    assert sorted(sim.store.contents) == sorted(keys), "no receipt, no retried part"
    assert retried not in sim.list_parts(name)
    assert await sim.used() == 8
    claims = await sim.ledger.list_claims("demo", "files", 0)
    assert [claim.member for claim in claims] == [file]
    assert told(sim, name)["Succeeded"] == ("True", "Completed")
    assert sim.find(UPLOADS, name)["status"]["fileUid"] == obj["metadata"]["uid"]
    await sim.wait(lambda: sim.ready(file) == ("True", "Available"))


def list_kills(steps: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Each step alone, and all of them in one life."""
    return [*((step,) for step in steps), steps]


@pytest.mark.parametrize("steps", list_kills(COMPLETION_STEPS))
@in_virtual_time
async def test_kill_in_settlement_leaves_one_file(steps: tuple[str, ...]) -> None:
    sim = Simulation()
    sim.arm(*steps)
    await sim.boot()
    name = await sim.add_upload(b"12345", b"678")
    parts = sim.list_parts(name)
    await sim.add_part(name, b"retried")
    async with sim.reviving():
        file = await sim.complete(name, *parts)
        await sim.wait(lambda: sim.is_settled(name) and not +sim.failpoints.left)
    assert [f["metadata"]["name"] for f in sim.kube.list_objects(FILES)] == [file]
    assert sim.list_parts(name) == sorted(parts)
    assert len(sim.store.contents) == 2
    assert await sim.used() == 8
    assert await sim.reconcile(0) == 0
    await sim.restart()
    assert await sim.prove(0) == 0


@pytest.mark.parametrize("steps", list_kills(EXPIRY_STEPS))
@in_virtual_time
async def test_kill_while_upload_expires_leaves_nothing(steps: tuple[str, ...]) -> None:
    sim = Simulation()
    sim.arm(*steps)
    await sim.boot()
    name = await sim.add_upload(b"12345")
    async with sim.reviving():
        await sim.wait(lambda: sim.is_settled(name) and not +sim.failpoints.left, seconds=4000)
    assert sim.find(UPLOADS, name)["spec"]["outcome"] == "Expired"
    assert sim.store.contents == {}
    assert await sim.used() == 0


@in_virtual_time
async def test_file_deleted_before_settling_is_not_recreated():
    sim = await Simulation.start()
    name = await sim.add_upload(b"12345")
    await sim.kill()
    (part,) = sim.list_parts(name)
    file = await sim.complete(name, part)
    await sim.kube.create(FILES, compose_file(sim.find(UPLOADS, name)))
    await sim.kube.delete(FILES, file)
    await sim.resume()
    await sim.wait(lambda: sim.is_settled(name))
    await sim.wait(lambda: sim.find(FILES, file) is None)
    await asyncio.sleep(60)
    assert sim.kube.list_objects(FILES) == []
    assert sim.store.contents == {}
    assert await sim.used() == 0


@in_virtual_time
async def test_file_made_late_from_manifest_is_deleted():
    sim = await Simulation.start()
    name = await sim.add_upload(b"12345")
    (part,) = sim.list_parts(name)
    file = await sim.complete(name, part)
    manifest = sim.find(UPLOADS, name)
    await sim.wait(lambda: sim.is_settled(name))
    await sim.kube.delete(FILES, file)
    await sim.wait(lambda: sim.find(FILES, file) is None)
    await sim.kube.create(FILES, compose_file(manifest))
    await sim.wait(lambda: sim.find(FILES, file) is None, what="the late one's end")
    assert sim.store.contents == {}
    assert await sim.used() == 0


@in_virtual_time
async def test_two_owners_settle_an_upload_with_one_file():
    sim = await Simulation.start()
    name = await sim.add_upload(b"12345")
    twin = Settlement(Controllers(sim).storage, FileRecorder(sim.kube, sim.ledger))
    create = sim.kube.create
    raced = False

    async def create_slowly(plural: str, obj: Any) -> Any:
        nonlocal raced
        made = await create(plural, obj)
        if plural == FILES and not raced:
            # the twin finds the file there, and settles the Upload before this create has returned
            raced = True
            await twin.settle(sim.find(UPLOADS, name))
        return made

    sim.kube.create = create_slowly  # type: ignore[method-assign]
    file = await sim.complete(name, *sim.list_parts(name))
    await sim.wait(lambda: raced and sim.is_settled(name))
    await asyncio.sleep(60)
    obj = sim.find(FILES, file)
    assert obj is not None, "I9: the file that both have seen is gone"
    assert sim.find(UPLOADS, name)["status"]["fileUid"] == obj["metadata"]["uid"]
    assert await sim.used() == 5
    assert len(sim.store.contents) == 1


@in_virtual_time
async def test_deleted_upload_is_cancelled_and_removed():
    sim = await Simulation.start()
    name = await sim.add_upload(b"12345")
    await sim.kube.delete(UPLOADS, name)
    await sim.wait(lambda: sim.find(UPLOADS, name) is None)
    assert sim.store.contents == {}
    assert await sim.used() == 0


@in_virtual_time
async def test_completed_upload_makes_its_file_while_the_store_is_away():
    sim = await Simulation.start()
    name = await sim.add_upload(b"12345")
    parts = sim.list_parts(name)
    sim.store.away = True
    file = await sim.complete(name, *parts)
    await sim.wait(lambda: sim.find(FILES, file) is not None)
    assert not sim.is_settled(name)
    sim.store.away = False
    await sim.wait(lambda: sim.is_settled(name) and sim.ready(file) == ("True", "Available"))


@in_virtual_time
async def test_settled_upload_is_removed_after_a_day_and_file_stays():
    sim = Simulation()
    controllers = await sim.boot()
    name = await sim.add_upload(b"12345")
    file = await sim.complete(name, *sim.list_parts(name))
    open_one = await sim.add_upload(b"1")
    await sim.wait(lambda: sim.is_settled(name))
    removal = build_removal(sim, controllers)
    await asyncio.sleep(DAY)
    assert await removal.sweep() == 0
    await asyncio.sleep(3600)
    assert await removal.sweep() == 2
    assert sim.find(UPLOADS, name) is None
    assert sim.find(UPLOADS, open_one) is None, "it has expired meanwhile"
    assert await sim.reconcile(0) == 0, "its parts are the file's"
    await sim.kube.delete(FILES, file)
    await sim.wait(lambda: sim.find(FILES, file) is None)
    assert sim.store.contents == {}


@pytest.mark.parametrize("end", ["Cancelled", "Expired", "Completed"])
@in_virtual_time
async def test_reused_upload_name_keeps_bytes_of_earlier_file(end: str) -> None:
    sim = Simulation()
    controllers = await sim.boot()
    name, file = await sim.settle_upload(b"12345")
    (part,) = sim.list_parts(name)
    removal = build_removal(sim, controllers)
    await asyncio.sleep(DAY + 3600)
    assert await removal.sweep() == 1
    # the same Idempotency-Key a day later
    await sim.add_upload(b"678", name=name)
    [new] = set(sim.list_parts(name)) - {part}
    if end == "Completed":
        await sim.complete(name, new)
    elif end == "Cancelled":
        await sim.change(UPLOADS, name, {"spec": {"outcome": end}})
    await sim.wait(lambda: sim.is_settled(name), seconds=4000)
    assert sim.find(UPLOADS, name)["spec"]["outcome"] == end
    assert sim.list_parts(name) == sorted([part, new] if end == "Completed" else [part])
    await sim.kube.delete(FILES, file)
    await sim.wait(lambda: sim.find(FILES, file) is None)


@in_virtual_time
async def test_batch_keeps_the_bytes_of_a_file_whose_upload_is_not_settled():
    sim = await Simulation.start()
    await sim.kill()
    name = await sim.add_upload(b"12345", purpose="batch")
    file = await sim.complete(name, *sim.list_parts(name))
    await sim.kube.create(FILES, compose_file(sim.find(UPLOADS, name)))
    request = {"accountName": "demo", "inputFileName": file}
    batch = {"metadata": {"name": "batch-a"}, "spec": {"request": request}}
    await sim.kube.create(BATCHES, batch)
    await sim.kube.delete(FILES, file)
    before = dict(sim.store.contents)
    controllers = await sim.resume()
    await asyncio.sleep(300)
    assert sim.store.contents == before
    assert await sim.used() == 0
    assert controllers.files._leaving == {}, "it waits for the batch, and is not stuck"
    found = await sim.kube.get(BATCHES, "batch-a")
    await sim.kube.patch_status(BATCHES, found, {"work": "Settled"})
    await sim.wait(lambda: sim.find(FILES, file) is None)
    assert sim.store.contents == {}
    assert sim.is_settled(name)


@in_virtual_time
async def test_file_restored_from_backup_keeps_its_bytes():
    sim = await Simulation.start()
    name, file = await sim.settle_upload(b"12345")
    lost = sim.find(FILES, file)
    sim.kube.remove(FILES, file)
    back = {"metadata": {"name": file}, "spec": lost["spec"]}
    made = await sim.kube.create(FILES, back)
    await sim.wait(lambda: sim.ready(file) == ("True", "Available"))
    await asyncio.sleep(60)
    assert sim.find(FILES, file)["metadata"]["uid"] == made["metadata"]["uid"]
    assert sim.find(UPLOADS, name)["status"]["fileUid"] == made["metadata"]["uid"]
    assert list(sim.store.contents.values()) == [b"12345"]


@pytest.mark.parametrize("deleted", [False, True], ids=["file is there", "file was deleted"])
@in_virtual_time
async def test_upload_restored_without_status_makes_no_further_file(deleted):
    sim = await Simulation.start()
    name, file = await sim.settle_upload(b"12345", b"678")
    if deleted:
        await sim.kube.delete(FILES, file)
        await sim.wait(lambda: sim.find(FILES, file) is None)
    before = sim.kube.list_objects(FILES)
    obj = sim.find(UPLOADS, name)
    sim.kube.remove(UPLOADS, name)
    kept = {key: obj["metadata"][key] for key in ("name", "labels")}
    await sim.kube.create(UPLOADS, {"metadata": kept, "spec": obj["spec"]})
    await sim.wait(lambda: sim.is_settled(name))
    assert sim.kube.list_objects(FILES) == before
    assert await sim.used() == (0 if deleted else 8)


@pytest.mark.parametrize("lost", [False, True])
@in_virtual_time
async def test_file_restored_without_status_is_checked_and_counted_once(lost):
    sim = await Simulation.start()
    name = await sim.add_file(b"12345")
    await sim.wait(lambda: sim.ready(name) == ("True", "Available"))
    obj = sim.find(FILES, name)
    sim.kube.remove(FILES, name)
    if lost:
        sim.store.contents.clear()
    await sim.kube.create(FILES, {"metadata": {"name": name}, "spec": obj["spec"]})
    expected = ("False", "BytesMissing") if lost else ("True", "Available")
    await sim.wait(lambda: sim.ready(name) == expected)
    assert await sim.used() == 5
    await sim.prove()
    assert await sim.used() == 5
