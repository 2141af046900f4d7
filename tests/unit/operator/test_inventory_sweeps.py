"""The record, the object store and the storage ledger held against each other (I6, I8)."""

import asyncio

from gateway_core.api.resource import (
    batch_folder,
    file_key,
    put_key,
    temporary_key,
    upload_folder,
)
from gateway_core.files.addresses import PUT_SECONDS, TICKET_SECONDS
from gateway_operator.files.quotacheck import LONGEST_PUT_SECONDS
from gateway_operator.files.storage import take_inventory
from tests.fakes.clock import in_virtual_time
from tests.unit.operator.file_harness import BATCHES, DAY, FILES, UPLOADS, Stage, later


@in_virtual_time
async def test_bytes_that_nothing_names_go_once_they_are_old():
    stage = Stage()
    await stage.boot()
    lost = stage.name_file()
    orphans = [
        file_key("demo", lost),
        temporary_key("demo", lost),
        upload_folder("demo", "upload-gone") + "part_a",
        batch_folder("demo", "batch-gone") + "0001",
    ]
    for key in orphans:
        await stage.store.put(key, b"orphan")
    await stage.store.put("tasks/demo/task-a.json", b"not ours to look at")
    name = await stage.add_file()
    assert await stage.reconcile() == 0
    await asyncio.sleep(DAY - 10)
    assert await stage.reconcile() == 0
    await asyncio.sleep(20)
    assert await stage.reconcile() == 4
    assert sorted(stage.store.contents) == [file_key("demo", name), "tasks/demo/task-a.json"]
    assert stage.count("gateway_orphans_removed_total", folder="files") == 1
    assert stage.count("gateway_orphan_bytes_removed_total") == 24
    assert await stage.reconcile() == 0
    await stage.kill()


@in_virtual_time
async def test_what_belongs_to_something_stays_however_old_it_is():
    stage = Stage()
    await stage.boot()
    await stage.kill()
    await stage.add_file()
    pending = await stage.add_upload(b"12345")
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
    made = await stage.kube.create(BATCHES, batch)
    named = {"outputFileName": "file-output", "errorFileName": "file-errors"}
    await stage.kube.patch_status(BATCHES, made, named)
    await stage.store.put(file_key("demo", "file-output"), b"x")
    await stage.store.put(file_key("demo", "file-errors"), b"x")
    await stage.store.put(batch_folder("demo", "batch-a") + "0001", b"result")
    await stage.store.put(file_key("demo", "file-read"), b"x")
    await stage.store.put(upload_folder("demo", "upload-read") + "part_a", b"x")
    before = dict(stage.store.contents)
    await asyncio.sleep(10 * DAY)
    assert await stage.reconcile() == 0
    assert stage.store.contents == before
    assert stage.find(UPLOADS, pending) is not None


@in_virtual_time
async def test_nothing_of_an_unknown_account_is_removed():
    stage = Stage()
    await stage.boot()
    await stage.store.put(file_key("nobody", "file-a"), b"another gateway's")
    await stage.store.put("files/odd", b"nobody wrote this")
    await asyncio.sleep(10 * DAY)
    assert await stage.reconcile() == 0
    assert len(stage.store.contents) == 2
    await stage.kill()


@in_virtual_time
async def test_one_that_is_recorded_after_the_list_keeps_its_bytes():
    stage = Stage()
    await stage.boot()
    name = stage.name_file()
    await stage.store.put(file_key("demo", name), b"late")
    await asyncio.sleep(2 * DAY)
    listed = stage.store.list_entries
    made = False

    async def list_late(prefix: str, *, start_after: str | None = None):
        nonlocal made
        if prefix == "files/" and not made:
            made = True
            await stage.kube.create(FILES, stage.build_file(name, b"late"))
        async for entry in listed(prefix, start_after=start_after):
            yield entry

    stage.store.list_entries = list_late  # type: ignore[method-assign]
    assert await stage.reconcile() == 0
    assert file_key("demo", name) in stage.store.contents
    await stage.kill()


@in_virtual_time
async def test_parts_that_came_after_the_settlement_go_and_the_files_own_stay():
    stage = Stage()
    await stage.boot()
    upload = await stage.add_upload(b"12345", b"678")
    parts = stage.list_parts(upload)
    file = await stage.complete(upload, *parts)
    await stage.wait(lambda: stage.is_settled(upload))
    await stage.add_part(upload, b"late")
    await asyncio.sleep(DAY + 10)
    assert await stage.reconcile() == 2
    assert stage.list_parts(upload) == sorted(parts)
    assert stage.ready(file) == ("True", "Available")
    await stage.kill()


@in_virtual_time
async def test_what_another_attempt_at_a_file_has_left_beside_it_goes():
    stage = Stage()
    await stage.boot()
    name = await stage.add_file(b"abc", purpose="temporary")
    stray = f"{temporary_key('demo', name)}/another"
    await stage.store.put(stray, b"abc")
    await asyncio.sleep(DAY + 10)
    assert await stage.reconcile() == 1
    assert list(stage.store.contents) == [file_key("demo", name)]
    assert stage.ready(name) == ("True", "Available")
    await stage.kill()


@in_virtual_time
async def test_missing_bytes_are_told_and_taken_back_once_they_are_there():
    stage = Stage()
    await stage.boot()
    whole, broken = await stage.add_file(b"abc"), await stage.add_file(b"abc")
    await stage.wait(lambda: stage.ready(broken) == ("True", "Available"))
    await stage.store.delete(file_key("demo", broken))
    await stage.reconcile()
    assert stage.ready(broken) == ("False", "BytesMissing")
    assert stage.ready(whole) == ("True", "Available")
    assert stage.count("gateway_files_broken") == 1
    await stage.reconcile()
    assert len(stage.kube.events) == 1, "told once"
    await stage.store.put(file_key("demo", broken), b"ab")
    await stage.reconcile()
    assert "2 bytes" in stage.find(FILES, broken)["status"]["conditions"][0]["message"]
    await stage.store.put(file_key("demo", broken), b"abc")
    await stage.reconcile()
    assert stage.ready(broken) == ("True", "Available")
    assert stage.count("gateway_files_broken") == 0
    await stage.kill()


@in_virtual_time
async def test_a_ledger_that_agrees_is_left_alone():
    stage = Stage()
    await stage.boot()
    await stage.add_file(b"123")
    await stage.add_file(b"temporary", purpose="temporary")
    await stage.add_upload(b"12345")
    await asyncio.sleep(200)
    assert await stage.prove() == 0
    assert stage.count("gateway_stored_bytes", state="files") == 3
    assert stage.count("gateway_stored_bytes", state="temporary") == 9
    assert stage.count("gateway_stored_bytes", state="reserved") == 5
    assert stage.count("gateway_files", purpose="user_data") == 1
    assert await stage.used() == 8
    await stage.kill()


@in_virtual_time
async def test_a_claim_without_an_object_is_released_once_no_create_can_be_under_way():
    stage = Stage()
    await stage.boot()
    assert await stage.ledger.claim("demo", "files", stage.name_file(), 7, 100)
    assert await stage.ledger.claim("demo", "files", "upload-never", 9, 100)
    await asyncio.sleep(100)
    assert await stage.prove() == 0
    assert await stage.used() == 16
    await asyncio.sleep(30)
    assert await stage.prove() == 2
    assert await stage.used() == 0
    await stage.kill()


@in_virtual_time
async def test_what_was_prepared_keeps_its_room_for_as_long_as_it_can_be_confirmed():
    stage = Stage()
    await stage.boot()
    name = stage.name_file()
    assert await stage.ledger.claim("demo", "temporary", name, 7, 100)
    await stage.store.put(put_key("demo", name), b"put")
    await asyncio.sleep(TICKET_SECONDS)
    assert await stage.prove() == 0
    await asyncio.sleep(200)
    assert await stage.prove() == 1
    assert (await stage.ledger.read_used("demo", "temporary")).bytes == 0
    assert await stage.reconcile() == 0
    await asyncio.sleep(TICKET_SECONDS)
    assert await stage.reconcile() == 1
    assert stage.store.contents == {}
    await stage.kill()


@in_virtual_time
async def test_what_was_prepared_and_never_put_keeps_its_room_while_it_can_be_put():
    stage = Stage()
    await stage.boot()
    assert await stage.ledger.claim("demo", "temporary", stage.name_file(), 7, 100)
    put = stage.name_file()
    assert await stage.ledger.claim("demo", "temporary", put, 11, 100)
    await stage.store.put(put_key("demo", put), b"put")
    await asyncio.sleep(PUT_SECONDS + 30)
    assert await stage.prove() == 0
    await asyncio.sleep(LONGEST_PUT_SECONDS)
    stage.store.away = True
    assert await stage.prove() == 0, "it is not known what was put"
    stage.store.away = False
    assert await stage.prove() == 1
    [left] = await stage.ledger.list_claims("demo", "temporary", 0)
    assert left.member == put
    await stage.kill()


@in_virtual_time
async def test_what_a_killed_call_has_stored_itself_is_not_waited_for():
    stage = Stage()
    await stage.boot()
    name = stage.name_file()
    await stage.store.put(f"{temporary_key('demo', name)}/stored", b"stored")
    assert await stage.ledger.claim("demo", "temporary", name, 6, 100)
    await asyncio.sleep(100)
    assert await stage.prove() == 0
    await asyncio.sleep(30)
    assert await stage.prove() == 1
    assert (await stage.ledger.read_used("demo", "temporary")).bytes == 0
    await stage.kill()


@in_virtual_time
async def test_what_was_put_stays_while_it_is_confirmed_however_soon_orphans_go():
    stage = Stage()
    await stage.boot()
    key = put_key("demo", stage.name_file())
    await stage.store.put(key, b"put")
    await stage.store.put(file_key("demo", stage.name_file()), b"orphan")
    await asyncio.sleep(TICKET_SECONDS + 200)
    assert await stage.reconcile(orphan_seconds=3600) == 1
    assert list(stage.store.contents) == [key]
    await asyncio.sleep(200)
    assert await stage.reconcile(orphan_seconds=3600) == 1
    assert stage.store.contents == {}
    await stage.kill()


@in_virtual_time
async def test_an_object_that_is_not_counted_makes_the_pool_stale():
    stage = Stage()
    await stage.boot()
    await stage.add_file(b"123", claimed=False)
    await asyncio.sleep(100)
    assert await stage.prove() == 0, "it may be on its way"
    await asyncio.sleep(30)
    assert await stage.prove() == 1
    assert await stage.ledger.begin_rebuild("demo", "files") is not None, "it is stale"
    assert stage.count("gateway_storage_repairs_total", kind="missing") == 1
    assert await stage.prove() == 0, "what is stale is made from the record"
    await stage.kill()


@in_virtual_time
async def test_wrong_bytes_of_a_member_make_the_pool_stale():
    stage = Stage()
    await stage.boot()
    name = stage.name_file()
    assert await stage.ledger.claim("demo", "files", name, 99, 1000)
    await stage.add_file(b"123", name=name, claimed=False)
    await asyncio.sleep(130)
    assert await stage.prove() == 1
    assert stage.count("gateway_storage_repairs_total", kind="size") == 1
    await stage.kill()


@in_virtual_time
async def test_what_a_file_of_another_account_takes_is_a_stray():
    stage = Stage()
    await stage.boot()
    stage.put_account("other")
    name = await stage.add_file(b"123", account="other")
    assert await stage.ledger.claim("demo", "files", name, 3, 100)
    await asyncio.sleep(130)
    assert await stage.prove() == 1
    assert (await stage.used("demo"), await stage.used("other")) == (0, 3)
    await stage.kill()


@in_virtual_time
async def test_a_reservation_that_is_being_settled_is_no_difference():
    stage = Stage()
    await stage.boot()
    await stage.kill()
    upload = await stage.add_upload(b"12345")
    await stage.complete(upload, *stage.list_parts(upload))
    await asyncio.sleep(300)
    stage.store.away = True
    controllers = await stage.start()
    assert await stage.prove() == 0
    assert await stage.used() == 5
    stage.store.away = False
    await stage.wait(lambda: not controllers.uploads._ends)
    assert await stage.used() == 5
    await stage.kill()


@in_virtual_time
async def test_what_no_event_has_told_of_is_taken_up():
    stage = Stage()
    await stage.boot()
    name = await stage.add_file(expirationTime=later(600))
    upload = await stage.add_upload(b"12345")
    await asyncio.sleep(1)
    stage.deafen()
    assert stage.controllers is not None
    stage.controllers.files.forget(name)
    stage.controllers.uploads.queue.forget(upload)
    await asyncio.sleep(4000)
    assert stage.find(FILES, name) is not None
    for _ in range(2):  # the first deletes the file, the second removes its bytes
        await stage.prove()
        await asyncio.sleep(100)
    assert stage.find(FILES, name) is None
    assert stage.find(UPLOADS, upload)["status"]["work"] == "Settled"
    assert stage.store.contents == {}
    await stage.kill()


@in_virtual_time
async def test_a_survey_reads_every_page():
    stage = Stage()
    for _ in range(250):
        await stage.add_file(claimed=False)
    survey = await take_inventory(stage.kube)
    assert len(survey.files) == 250
