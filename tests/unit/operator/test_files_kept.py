"""Files: taken in, and gone with their bytes once deleted or past their life (I5, I6, I9)."""

import asyncio

import pytest

from gateway_core.api.ids import SHARD_LABEL, STORED_FINALIZER
from gateway_core.api.resource import file_key
from gateway_operator.files.controller import GRACE_SECONDS
from tests.fakes.clock import in_virtual_time
from tests.unit.operator.file_harness import (
    BATCHES,
    FILES,
    Simulation,
    later,
)
from tests.unit.operator.steps import FILE_STEPS


async def delete(sim: Simulation, name: str) -> None:
    await sim.kube.delete(FILES, name)


@in_virtual_time
async def test_new_file_becomes_ready():
    sim = await Simulation.start()
    name = await sim.add_file()
    await sim.wait(lambda: sim.ready(name) == ("True", "Available"))
    assert sim.kube.events == []


@in_virtual_time
async def test_missing_bytes_are_reported_with_event():
    sim = await Simulation.start()
    missing, short = sim.name_file(), sim.name_file()
    await sim.kube.create(FILES, sim.build_file(missing, b"abc"))
    await sim.store.put(file_key("demo", short), b"ab")
    await sim.kube.create(FILES, sim.build_file(short, b"abc"))
    for name in (missing, short):
        await sim.wait(lambda name=name: sim.ready(name) == ("False", "BytesMissing"))
    await sim.wait(lambda: len(sim.kube.events) == 2)
    told = {name: (reason, text) for name, reason, text in sim.kube.events}
    assert told[missing] == (
        "BytesMissing",
        f"files/demo/{missing} is not in the object store (1 of 1 parts)",
    )
    assert "has 2 bytes, not 3" in told[short][1]


@in_virtual_time
async def test_deleted_file_frees_bytes_and_quota():
    sim = await Simulation.start()
    kept = await sim.add_file(b"stays")
    name = await sim.add_file(b"goes away")
    assert await sim.used() == 14
    await delete(sim, name)
    await sim.wait(lambda: sim.find(FILES, name) is None)
    assert list(sim.store.contents) == [file_key("demo", kept)]
    assert await sim.used() == 5


@pytest.mark.parametrize("steps", [*((step,) for step in FILE_STEPS), FILE_STEPS])
@in_virtual_time
async def test_kill_in_deletion_leaves_nothing_behind(steps: tuple[str, ...]) -> None:
    sim = await Simulation.start()
    _, name = await sim.settle_upload(b"12345")
    await sim.kill()
    sim.arm(*steps)
    await sim.resume()
    async with sim.reviving():
        await delete(sim, name)
        await sim.wait(lambda: sim.find(FILES, name) is None and not +sim.failpoints.left)
    assert sim.store.contents == {}
    assert await sim.used() == 0


@in_virtual_time
async def test_object_stays_and_event_reports_unavailable_store():
    sim = await Simulation.start()
    name = await sim.add_file()
    await sim.wait(lambda: sim.ready(name) == ("True", "Available"))
    sim.store.away = True
    await delete(sim, name)
    await asyncio.sleep(500)
    assert sim.kube.events == []
    await asyncio.sleep(200)
    assert [reason for _, reason, _ in sim.kube.events] == ["BytesNotRemoved"]
    assert await sim.used() == 0, "its room is given back all the same"
    assert STORED_FINALIZER in sim.find(FILES, name)["metadata"]["finalizers"]
    sim.store.away = False
    await sim.wait(lambda: sim.find(FILES, name) is None)
    assert sim.store.contents == {}


@in_virtual_time
async def test_deletion_without_ledger_is_released_by_quota_check():
    sim = await Simulation.start()
    name = await sim.add_file(b"12345")
    sim.ledger.away = True
    await delete(sim, name)
    await sim.wait(lambda: sim.find(FILES, name) is None)
    sim.ledger.away = False
    assert await sim.used() == 5
    await asyncio.sleep(130)
    assert await sim.prove() == 1
    assert await sim.used() == 0
    assert sim.count("gateway_storage_repairs_total", kind="stray") == 1


@in_virtual_time
async def test_input_of_a_batch_stays_until_the_batch_is_settled():
    sim = await Simulation.start()
    name = await sim.add_file(purpose="batch")
    batch = {
        "metadata": {"name": "batch-a"},
        "spec": {"request": {"accountName": "demo", "inputFileName": name}},
    }
    await sim.kube.create(BATCHES, batch)
    await delete(sim, name)
    await asyncio.sleep(300)
    assert file_key("demo", name) in sim.store.contents
    found = await sim.kube.get(BATCHES, "batch-a")
    await sim.kube.patch_status(BATCHES, found, {"work": "Settled"})
    await sim.wait(lambda: sim.find(FILES, name) is None)
    assert sim.store.contents == {}


@in_virtual_time
async def test_batch_created_during_deletion_finds_its_input():
    sim = await Simulation.start()
    name = await sim.add_file(purpose="batch")
    await delete(sim, name)
    await asyncio.sleep(GRACE_SECONDS - 1)
    batch = {
        "metadata": {"name": "batch-a"},
        "spec": {"request": {"accountName": "demo", "inputFileName": name}},
    }
    await sim.kube.create(BATCHES, batch)
    await asyncio.sleep(100)
    assert file_key("demo", name) in sim.store.contents


@in_virtual_time
async def test_expired_file_is_removed_in_seconds_and_after_restart():
    sim = await Simulation.start()
    short = await sim.add_file(expirationTime=later(3600))
    long = await sim.add_file(expirationTime=later(30 * 86_400))
    forever = await sim.add_file()
    await asyncio.sleep(3598)
    assert sim.find(FILES, short) is not None
    await sim.wait(lambda: sim.find(FILES, short) is None, seconds=4)
    await sim.kill()
    await asyncio.sleep(30 * 86_400 - 3700)
    controllers = await sim.resume()
    await asyncio.sleep(10)
    assert len(controllers.files._expiries) == 1
    assert sim.find(FILES, long) is not None
    await sim.wait(lambda: sim.find(FILES, long) is None)
    assert sim.find(FILES, forever) is not None
    assert len(controllers.files._expiries) == 0


@in_virtual_time
async def test_files_without_expiry_use_no_memory():
    sim = Simulation()
    controllers = await sim.boot()
    names = [await sim.add_file() for _ in range(20)]
    await sim.wait(lambda: all(sim.ready(name)[0] == "True" for name in names))
    await asyncio.sleep(1)
    assert not controllers.files._news
    assert len(controllers.files._expiries) == 0
    assert controllers.files.queue.scheduled == 0


@in_virtual_time
async def test_file_made_by_hand_is_adopted():
    sim = await Simulation.start()
    name, data = sim.name_file(), b"put back"
    await sim.store.put(file_key("demo", name), data)
    obj = sim.build_file(name, data)
    obj["metadata"] = {"name": name, "finalizers": ["example.com/other"]}
    await sim.kube.create(FILES, obj)
    await sim.wait(lambda: sim.ready(name) == ("True", "Available"))
    meta = sim.find(FILES, name)["metadata"]
    assert SHARD_LABEL in meta["labels"]
    assert meta["finalizers"] == ["example.com/other", STORED_FINALIZER]


@in_virtual_time
async def test_file_from_kubectl_without_owner_is_not_ready():
    sim = await Simulation.start()
    unminted = "file-" + "a" * 26
    foreign = sim.name_file("other")
    elsewhere, theirs = sim.name_file(), await sim.add_file(b"theirs")
    for name, account in ((unminted, "demo"), (foreign, "demo"), (elsewhere, "demo")):
        obj = sim.build_file(name, b"x", account=account)
        obj["metadata"] = {"name": name}
        if name == elsewhere:
            obj["spec"]["request"]["segments"][0]["key"] = file_key("demo", theirs)
        await sim.kube.create(FILES, obj)
    nobody = sim.name_file("nobody")
    await sim.kube.create(FILES, sim.build_file(nobody, b"x", account="nobody"))
    expected = {
        unminted: "NameNotMinted",
        foreign: "NameNotMinted",
        elsewhere: "InvalidField",
        nobody: "AccountNotFound",
    }
    for name, reason in expected.items():
        await sim.wait(lambda n=name, r=reason: sim.ready(n) == ("False", r), what=reason)
        assert SHARD_LABEL not in (sim.find(FILES, name)["metadata"].get("labels") or {}) or (
            name == nobody
        )


@in_virtual_time
async def test_deletion_leaves_bytes_of_another_file():
    sim = await Simulation.start()
    theirs = await sim.add_file(b"theirs")
    name = sim.name_file()
    obj = sim.build_file(name, b"theirs")
    obj["spec"]["request"]["segments"][0]["key"] = file_key("demo", theirs)
    await sim.kube.create(FILES, obj)
    await delete(sim, name)
    await sim.wait(lambda: sim.find(FILES, name) is None)
    assert sim.store.contents == {file_key("demo", theirs): b"theirs"}


@in_virtual_time
async def test_batch_file_of_a_deleted_account_goes_without_grace():
    sim = await Simulation.start()
    name = await sim.add_file(purpose="batch")
    account = {**sim.kube.find("gatewayaccounts", "demo")}
    account["metadata"] = {**account["metadata"], "deletionTimestamp": later(0)}
    sim.kube.put("gatewayaccounts", account)
    await delete(sim, name)
    await asyncio.sleep(GRACE_SECONDS / 10)
    assert sim.find(FILES, name) is None
    assert sim.store.contents == {}
