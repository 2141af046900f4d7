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
    Stage,
    TrippedFailpoints,
    later,
)

STEPS = ("after-file-release", "after-file-bytes", "after-file-finalizer")


async def delete(stage: Stage, name: str) -> None:
    await stage.kube.delete(FILES, name)


@in_virtual_time
async def test_a_new_file_is_said_to_be_ready():
    stage = Stage()
    await stage.boot()
    name = await stage.add_file()
    await stage.wait(lambda: stage.ready(name) == ("True", "Available"))
    assert stage.kube.events == []
    await stage.kill()


@in_virtual_time
async def test_a_file_whose_bytes_are_not_there_is_told_with_an_event():
    stage = Stage()
    await stage.boot()
    missing, short = stage.name_file(), stage.name_file()
    await stage.kube.create(FILES, stage.build_file(missing, b"abc"))
    await stage.store.put(file_key("demo", short), b"ab")
    await stage.kube.create(FILES, stage.build_file(short, b"abc"))
    for name in (missing, short):
        await stage.wait(lambda name=name: stage.ready(name) == ("False", "BytesMissing"))
    told = {name: (reason, text) for name, reason, text in stage.kube.events}
    assert told[missing] == (
        "BytesMissing",
        f"files/demo/{missing} is not in the object store (1 of 1 parts)",
    )
    assert "has 2 bytes, not 3" in told[short][1]
    await stage.kill()


@in_virtual_time
async def test_a_deleted_file_goes_with_its_bytes_and_its_room():
    stage = Stage()
    await stage.boot()
    kept = await stage.add_file(b"stays")
    name = await stage.add_file(b"goes away")
    assert await stage.used() == 14
    await delete(stage, name)
    await stage.wait(lambda: stage.find(FILES, name) is None)
    assert list(stage.store.contents) == [file_key("demo", kept)]
    assert await stage.used() == 5
    await stage.kill()


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_in_a_deletion_leaves_nothing_behind(step):
    @in_virtual_time
    async def run():
        stage = Stage()
        stage.failpoints = TrippedFailpoints(step)
        await stage.boot()
        name = await stage.add_file()
        await delete(stage, name)
        await stage.wait(lambda: stage.failpoints.passed, what=step)
        await stage.kill()
        stage.failpoints = TrippedFailpoints("")
        await stage.start()
        await stage.wait(lambda: stage.find(FILES, name) is None)
        assert stage.store.contents == {}
        assert await stage.used() == 0
        await stage.kill()

    run()


@in_virtual_time
async def test_the_object_stays_while_the_store_is_away_and_an_admin_is_told():
    stage = Stage()
    await stage.boot()
    name = await stage.add_file()
    await stage.wait(lambda: stage.ready(name) == ("True", "Available"))
    stage.store.away = True
    await delete(stage, name)
    await asyncio.sleep(500)
    assert stage.kube.events == []
    await asyncio.sleep(200)
    assert [reason for _, reason, _ in stage.kube.events] == ["BytesNotRemoved"]
    assert await stage.used() == 0, "its room is given back all the same"
    assert STORED_FINALIZER in stage.find(FILES, name)["metadata"]["finalizers"]
    stage.store.away = False
    await stage.wait(lambda: stage.find(FILES, name) is None)
    assert stage.store.contents == {}
    await stage.kill()


@in_virtual_time
async def test_a_deletion_goes_on_while_the_ledger_is_away_and_the_proof_gives_the_room_back():
    stage = Stage()
    await stage.boot()
    name = await stage.add_file(b"12345")
    stage.ledger.away = True
    await delete(stage, name)
    await stage.wait(lambda: stage.find(FILES, name) is None)
    stage.ledger.away = False
    assert await stage.used() == 5
    await asyncio.sleep(130)
    assert await stage.prove() == 1
    assert await stage.used() == 0
    assert stage.count("gateway_storage_repairs_total", kind="stray") == 1
    await stage.kill()


@in_virtual_time
async def test_the_input_of_a_batch_stays_until_the_batch_is_settled():
    stage = Stage()
    await stage.boot()
    name = await stage.add_file(purpose="batch")
    batch = {
        "metadata": {"name": "batch-a"},
        "spec": {"request": {"accountName": "demo", "inputFileName": name}},
    }
    await stage.kube.create(BATCHES, batch)
    await delete(stage, name)
    await asyncio.sleep(300)
    assert file_key("demo", name) in stage.store.contents
    found = await stage.kube.get(BATCHES, "batch-a")
    await stage.kube.patch_status(BATCHES, found, {"work": "Settled"})
    await stage.wait(lambda: stage.find(FILES, name) is None)
    assert stage.store.contents == {}
    await stage.kill()


@in_virtual_time
async def test_a_batch_that_is_being_recorded_while_its_input_is_deleted_finds_the_bytes():
    stage = Stage()
    await stage.boot()
    name = await stage.add_file(purpose="batch")
    await delete(stage, name)
    await asyncio.sleep(GRACE_SECONDS - 1)
    batch = {
        "metadata": {"name": "batch-a"},
        "spec": {"request": {"accountName": "demo", "inputFileName": name}},
    }
    await stage.kube.create(BATCHES, batch)
    await asyncio.sleep(100)
    assert file_key("demo", name) in stage.store.contents
    await stage.kill()


@in_virtual_time
async def test_a_file_goes_when_its_life_is_over_within_seconds_and_across_restarts():
    stage = Stage()
    await stage.boot()
    short = await stage.add_file(expirationTime=later(3600))
    long = await stage.add_file(expirationTime=later(30 * 86_400))
    forever = await stage.add_file()
    await asyncio.sleep(3598)
    assert stage.find(FILES, short) is not None
    await stage.wait(lambda: stage.find(FILES, short) is None, seconds=4)
    await stage.kill()
    await asyncio.sleep(30 * 86_400 - 3700)
    controllers = await stage.start()
    await asyncio.sleep(10)
    assert len(controllers.files._expiries) == 1
    assert stage.find(FILES, long) is not None
    await stage.wait(lambda: stage.find(FILES, long) is None)
    assert stage.find(FILES, forever) is not None
    assert len(controllers.files._expiries) == 0
    await stage.kill()


@in_virtual_time
async def test_files_with_no_end_leave_nothing_in_memory():
    stage = Stage()
    controllers = await stage.boot()
    names = [await stage.add_file() for _ in range(20)]
    await stage.wait(lambda: all(stage.ready(name)[0] == "True" for name in names))
    await asyncio.sleep(1)
    assert not controllers.files._news
    assert len(controllers.files._expiries) == 0
    assert controllers.files.queue.scheduled == 0
    await stage.kill()


@in_virtual_time
async def test_a_file_made_by_hand_is_adopted():
    stage = Stage()
    await stage.boot()
    name, data = stage.name_file(), b"put back"
    await stage.store.put(file_key("demo", name), data)
    obj = stage.build_file(name, data)
    obj["metadata"] = {"name": name, "finalizers": ["example.com/other"]}
    await stage.kube.create(FILES, obj)
    await stage.wait(lambda: stage.ready(name) == ("True", "Available"))
    meta = stage.find(FILES, name)["metadata"]
    assert SHARD_LABEL in meta["labels"]
    assert meta["finalizers"] == ["example.com/other", STORED_FINALIZER]
    await stage.kill()


@in_virtual_time
async def test_a_file_made_by_hand_that_is_nobodys_is_told_why():
    stage = Stage()
    await stage.boot()
    unminted = "file-" + "a" * 26
    foreign = stage.name_file("other")
    elsewhere, theirs = stage.name_file(), await stage.add_file(b"theirs")
    for name, account in ((unminted, "demo"), (foreign, "demo"), (elsewhere, "demo")):
        obj = stage.build_file(name, b"x", account=account)
        obj["metadata"] = {"name": name}
        if name == elsewhere:
            obj["spec"]["request"]["segments"][0]["key"] = file_key("demo", theirs)
        await stage.kube.create(FILES, obj)
    nobody = stage.name_file("nobody")
    await stage.kube.create(FILES, stage.build_file(nobody, b"x", account="nobody"))
    expected = {
        unminted: "NameNotMinted",
        foreign: "NameNotMinted",
        elsewhere: "InvalidField",
        nobody: "AccountNotFound",
    }
    for name, reason in expected.items():
        await stage.wait(lambda n=name, r=reason: stage.ready(n) == ("False", r), what=reason)
        assert SHARD_LABEL not in (stage.find(FILES, name)["metadata"].get("labels") or {}) or (
            name == nobody
        )
    await stage.kill()


@in_virtual_time
async def test_deleting_a_file_that_names_anothers_bytes_leaves_them():
    stage = Stage()
    await stage.boot()
    theirs = await stage.add_file(b"theirs")
    name = stage.name_file()
    obj = stage.build_file(name, b"theirs")
    obj["spec"]["request"]["segments"][0]["key"] = file_key("demo", theirs)
    await stage.kube.create(FILES, obj)
    await delete(stage, name)
    await stage.wait(lambda: stage.find(FILES, name) is None)
    assert stage.store.contents == {file_key("demo", theirs): b"theirs"}
    await stage.kill()
