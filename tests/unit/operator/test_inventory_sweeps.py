"""The record, the object store and the storage ledger held against each other (I6, I8)."""

import asyncio

import pytest

from gateway_core.api.resource import (
    batch_folder,
    file_key,
    put_key,
    temporary_key,
    upload_folder,
)
from gateway_core.files.addresses import PUT_SECONDS, TICKET_SECONDS
from gateway_operator.files.audit import LONGEST_PUT_SECONDS
from gateway_operator.files.storage import take_inventory
from tests.fakes.clock import in_virtual_time
from tests.unit.operator.file_harness import BATCHES, DAY, FILES, UPLOADS, Simulation, later
from tests.unit.operator.steps import ORPHAN_STEPS


@in_virtual_time
async def test_old_orphaned_bytes_are_removed():
    sim = await Simulation.start()
    lost = sim.name_file()
    orphans = [
        file_key("demo", lost),
        temporary_key("demo", lost),
        upload_folder("demo", "upload-gone") + "part_a",
        batch_folder("demo", "batch-gone") + "0001",
    ]
    for key in orphans:
        await sim.store.put(key, b"orphan")
    await sim.store.put("tasks/demo/task-a.json", b"not ours to look at")
    name = await sim.add_file()
    assert await sim.reconcile() == 0
    await asyncio.sleep(DAY - 10)
    assert await sim.reconcile() == 0
    await asyncio.sleep(20)
    assert await sim.reconcile() == 4
    assert sorted(sim.store.contents) == [file_key("demo", name), "tasks/demo/task-a.json"]
    assert sim.count("gateway_orphans_removed_total", folder="files") == 1
    assert sim.count("gateway_orphan_bytes_removed_total") == 24
    assert await sim.reconcile() == 0


@in_virtual_time
async def test_kill_before_removal_of_orphans_removes_them_with_the_next_sweep():
    sim = await Simulation.start()
    sim.arm(*ORPHAN_STEPS, *ORPHAN_STEPS)
    await sim.restart()
    for name in ("file-a", "file-b"):
        await sim.store.put(file_key("demo", name), b"orphan")
    await asyncio.sleep(DAY + 10)
    for _ in range(2):
        with pytest.raises(asyncio.CancelledError):
            await sim.reconcile()
        assert len(sim.store.contents) == 2
        await sim.restart()
    assert await sim.reconcile() == 2
    assert sim.store.contents == {}


@in_virtual_time
async def test_owned_bytes_stay_at_any_age():
    sim = await Simulation.start()
    await sim.kill()
    await sim.add_file()
    pending = await sim.add_upload(b"12345")
    batch = {
        "metadata": {"name": "batch-a"},
        "spec": {
            "request": {
                "accountName": "demo",
                "segments": [
                    {"key": file_key("demo", "file-read"), "bytes": 1, "sha256": "0" * 64},
                    {"key": upload_folder("demo", "upload-read") + "part_a", "bytes": 1},
                ],
            }
        },
    }
    made = await sim.kube.create(BATCHES, batch)
    named = {"outputFileName": "file-output", "errorFileName": "file-errors"}
    await sim.kube.patch_status(BATCHES, made, named)
    await sim.store.put(file_key("demo", "file-output"), b"x")
    await sim.store.put(file_key("demo", "file-errors"), b"x")
    await sim.store.put(batch_folder("demo", "batch-a") + "0001", b"result")
    await sim.store.put(file_key("demo", "file-read"), b"x")
    await sim.store.put(upload_folder("demo", "upload-read") + "part_a", b"x")
    before = dict(sim.store.contents)
    await asyncio.sleep(10 * DAY)
    assert await sim.reconcile() == 0
    assert sim.store.contents == before
    assert sim.find(UPLOADS, pending) is not None


@in_virtual_time
async def test_bytes_of_an_unknown_account_stay():
    sim = await Simulation.start()
    await sim.store.put(file_key("nobody", "file-a"), b"another gateway's")
    await sim.store.put("files/odd", b"nobody wrote this")
    await asyncio.sleep(10 * DAY)
    assert await sim.reconcile() == 0
    assert len(sim.store.contents) == 2


@in_virtual_time
async def test_object_created_after_the_list_keeps_its_bytes():
    sim = await Simulation.start()
    name = sim.name_file()
    await sim.store.put(file_key("demo", name), b"late")
    await asyncio.sleep(2 * DAY)
    listed = sim.store.list_entries
    made = False

    async def list_late(prefix: str, *, start_after: str | None = None):
        nonlocal made
        if prefix == "files/" and not made:
            made = True
            await sim.kube.create(FILES, sim.build_file(name, b"late"))
        async for entry in listed(prefix, start_after=start_after):
            yield entry

    sim.store.list_entries = list_late  # type: ignore[method-assign]
    assert await sim.reconcile() == 0
    assert file_key("demo", name) in sim.store.contents


@in_virtual_time
async def test_late_parts_are_removed_and_parts_of_the_file_stay():
    sim = await Simulation.start()
    upload, file = await sim.settle_upload(b"12345", b"678")
    parts = sim.list_parts(upload)
    await sim.add_part(upload, b"late")
    await asyncio.sleep(DAY + 10)
    assert await sim.reconcile() == 2
    assert sim.list_parts(upload) == sorted(parts)
    assert sim.ready(file) == ("True", "Available")


@in_virtual_time
async def test_bytes_of_another_attempt_at_a_file_are_removed():
    sim = await Simulation.start()
    name = await sim.add_file(b"abc", purpose="temporary")
    stray = f"{temporary_key('demo', name)}/another"
    await sim.store.put(stray, b"abc")
    await asyncio.sleep(DAY + 10)
    assert await sim.reconcile() == 1
    assert list(sim.store.contents) == [file_key("demo", name)]
    assert sim.ready(name) == ("True", "Available")


@in_virtual_time
async def test_missing_bytes_are_reported_until_they_are_back():
    sim = await Simulation.start()
    whole, broken = await sim.add_file(b"abc"), await sim.add_file(b"abc")
    await sim.wait(lambda: sim.ready(broken) == ("True", "Available"))
    await sim.store.delete(file_key("demo", broken))
    await sim.reconcile()
    assert sim.ready(broken) == ("False", "BytesMissing")
    assert sim.ready(whole) == ("True", "Available")
    assert sim.count("gateway_files_broken") == 1
    await sim.reconcile()
    assert len(sim.kube.events) == 1, "told once"
    await sim.store.put(file_key("demo", broken), b"ab")
    await sim.reconcile()
    assert "2 bytes" in sim.find(FILES, broken)["status"]["conditions"][0]["message"]
    await sim.store.put(file_key("demo", broken), b"abc")
    await sim.reconcile()
    assert sim.ready(broken) == ("True", "Available")
    assert sim.count("gateway_files_broken") == 0


@in_virtual_time
async def test_consistent_ledger_is_not_changed():
    sim = await Simulation.start()
    await sim.add_file(b"123")
    await sim.add_file(b"temporary", purpose="temporary")
    await sim.add_upload(b"12345")
    await asyncio.sleep(200)
    assert await sim.prove() == 0
    assert sim.count("gateway_stored_bytes", state="files") == 3
    assert sim.count("gateway_stored_bytes", state="temporary") == 9
    assert sim.count("gateway_stored_bytes", state="reserved") == 5
    assert sim.count("gateway_files", purpose="user_data") == 1
    assert await sim.used() == 8


@in_virtual_time
async def test_stray_claim_is_released_after_the_longest_create():
    sim = await Simulation.start()
    assert await sim.ledger.claim("demo", "files", sim.name_file(), 7, 100)
    assert await sim.ledger.claim("demo", "files", "upload-never", 9, 100)
    await asyncio.sleep(100)
    assert await sim.prove() == 0
    assert await sim.used() == 16
    await asyncio.sleep(30)
    assert await sim.prove() == 2
    assert await sim.used() == 0


@in_virtual_time
async def test_prepared_claim_stays_while_it_can_be_confirmed():
    sim = await Simulation.start()
    name = sim.name_file()
    assert await sim.ledger.claim("demo", "temporary", name, 7, 100)
    await sim.store.put(put_key("demo", name), b"put")
    await asyncio.sleep(TICKET_SECONDS)
    assert await sim.prove() == 0
    await asyncio.sleep(200)
    assert await sim.prove() == 1
    assert (await sim.ledger.read_used("demo", "temporary")).bytes == 0
    assert await sim.reconcile() == 0
    await asyncio.sleep(TICKET_SECONDS)
    assert await sim.reconcile() == 1
    assert sim.store.contents == {}


@in_virtual_time
async def test_prepared_claim_stays_while_bytes_can_be_put():
    sim = await Simulation.start()
    assert await sim.ledger.claim("demo", "temporary", sim.name_file(), 7, 100)
    put = sim.name_file()
    assert await sim.ledger.claim("demo", "temporary", put, 11, 100)
    await sim.store.put(put_key("demo", put), b"put")
    await asyncio.sleep(PUT_SECONDS + 30)
    assert await sim.prove() == 0
    await asyncio.sleep(LONGEST_PUT_SECONDS)
    sim.store.away = True
    assert await sim.prove() == 0, "it is not known what was put"
    sim.store.away = False
    assert await sim.prove() == 1
    [left] = await sim.ledger.list_claims("demo", "temporary", 0)
    assert left.member == put


@in_virtual_time
async def test_claim_of_killed_call_is_released():
    sim = await Simulation.start()
    name = sim.name_file()
    await sim.store.put(f"{temporary_key('demo', name)}/stored", b"stored")
    assert await sim.ledger.claim("demo", "temporary", name, 6, 100)
    await asyncio.sleep(100)
    assert await sim.prove() == 0
    await asyncio.sleep(30)
    assert await sim.prove() == 1
    assert (await sim.ledger.read_used("demo", "temporary")).bytes == 0


@in_virtual_time
async def test_put_bytes_stay_while_they_can_be_confirmed():
    sim = await Simulation.start()
    key = put_key("demo", sim.name_file())
    await sim.store.put(key, b"put")
    await sim.store.put(file_key("demo", sim.name_file()), b"orphan")
    await asyncio.sleep(TICKET_SECONDS + 200)
    assert await sim.reconcile(orphan_seconds=3600) == 1
    assert list(sim.store.contents) == [key]
    await asyncio.sleep(200)
    assert await sim.reconcile(orphan_seconds=3600) == 1
    assert sim.store.contents == {}


@in_virtual_time
async def test_object_without_member_makes_the_pool_stale():
    sim = await Simulation.start()
    await sim.add_file(b"123", claimed=False)
    await asyncio.sleep(100)
    assert await sim.prove() == 0, "it may be on its way"
    await asyncio.sleep(30)
    assert await sim.prove() == 1
    assert await sim.ledger.begin_rebuild("demo", "files") is not None, "it is stale"
    assert sim.count("gateway_storage_repairs_total", kind="missing") == 1
    assert await sim.prove() == 0, "what is stale is made from the record"


@in_virtual_time
async def test_wrong_size_of_member_makes_the_pool_stale():
    sim = await Simulation.start()
    name = sim.name_file()
    assert await sim.ledger.claim("demo", "files", name, 99, 1000)
    await sim.add_file(b"123", name=name, claimed=False)
    await asyncio.sleep(130)
    assert await sim.prove() == 1
    assert sim.count("gateway_storage_repairs_total", kind="size") == 1


@in_virtual_time
async def test_member_named_as_file_of_another_account_is_stray():
    sim = await Simulation.start()
    sim.put_account("other")
    name = await sim.add_file(b"123", account="other")
    assert await sim.ledger.claim("demo", "files", name, 3, 100)
    await asyncio.sleep(130)
    assert await sim.prove() == 1
    assert (await sim.used("demo"), await sim.used("other")) == (0, 3)


@in_virtual_time
async def test_upload_being_settled_is_no_difference():
    sim = await Simulation.start()
    await sim.kill()
    upload = await sim.add_upload(b"12345")
    await sim.complete(upload, *sim.list_parts(upload))
    await asyncio.sleep(300)
    sim.store.away = True
    controllers = await sim.resume()
    assert await sim.prove() == 0
    assert await sim.used() == 5
    sim.store.away = False
    await sim.wait(lambda: not controllers.uploads._ends)
    assert await sim.used() == 5


@in_virtual_time
async def test_overdue_objects_are_rechecked():
    sim = await Simulation.start()
    name = await sim.add_file(expirationTime=later(600))
    upload = await sim.add_upload(b"12345")
    await asyncio.sleep(1)
    sim.deafen()
    assert sim.controllers is not None
    sim.controllers.files.forget(name)
    sim.controllers.uploads.queue.forget(upload)
    await asyncio.sleep(4000)
    assert sim.find(FILES, name) is not None
    for _ in range(2):  # the first deletes the file, the second removes its bytes
        await sim.prove()
        await asyncio.sleep(100)
    assert sim.find(FILES, name) is None
    assert sim.find(UPLOADS, upload)["status"]["work"] == "Settled"
    assert sim.store.contents == {}


@in_virtual_time
async def test_inventory_reads_every_page():
    sim = Simulation()
    for _ in range(250):
        await sim.add_file(claimed=False)
    survey = await take_inventory(sim.kube)
    assert len(survey.files) == 250
