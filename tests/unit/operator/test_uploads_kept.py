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
    Stage,
    TrippedFailpoints,
)

ENDINGS = ("after-upload-parts", "after-upload-finalizer", "after-upload-settled")
COMPLETIONS = ("after-upload-file", "after-upload-move", *ENDINGS)


def build_removal(stage: Stage, controllers: Controllers) -> EndedRemoval:
    return EndedRemoval(
        stage.kube,
        Deletions(stage.kube, Failpoints()),
        KIND,
        read_now,
        kept_seconds=RetentionRules().uploads,
        most=1000,
        resume=controllers.uploads.queue.add,
    )


def told(stage: Stage, name: str) -> dict[str, tuple[str, str]]:
    conditions = stage.find(UPLOADS, name)["status"]["conditions"]
    return {c["type"]: (c["status"], c["reason"]) for c in conditions}


@in_virtual_time
async def test_an_upload_that_nobody_completes_expires_with_its_hour():
    stage = Stage()
    await stage.boot()
    name = await stage.add_upload(b"12345", b"678")
    await asyncio.sleep(3598)
    assert stage.find(UPLOADS, name)["spec"]["outcome"] == "Pending"
    assert await stage.used() == 8
    await stage.wait(lambda: stage.is_settled(name), seconds=5)
    obj = stage.find(UPLOADS, name)
    assert (obj["spec"]["outcome"], obj["status"]["phase"]) == ("Expired", "Expired")
    assert told(stage, name) == {"Succeeded": ("False", "Expired"), "Finished": ("True", "Expired")}
    assert STORED_FINALIZER not in obj["metadata"]["finalizers"]
    assert stage.store.contents == {}
    assert await stage.used() == 0
    await stage.kill()


@in_virtual_time
async def test_a_cancelled_upload_leaves_no_part_and_no_reservation():
    stage = Stage()
    await stage.boot()
    name = await stage.add_upload(b"12345")
    other = await stage.add_upload(b"stays")
    await stage.change(UPLOADS, name, {"spec": {"outcome": "Cancelled"}})
    await stage.wait(lambda: stage.is_settled(name))
    assert stage.list_parts(name) == []
    assert len(stage.list_parts(other)) == 1
    assert await stage.used() == 5
    await stage.kill()


@in_virtual_time
async def test_a_completed_upload_is_one_file_and_its_other_parts_go():
    stage = Stage()
    await stage.boot()
    name = await stage.add_upload(b"12345", b"678")
    first, second = stage.list_parts(name)
    retried = await stage.add_part(name, b"12345")
    file = await stage.complete(name, second, first)
    await stage.wait(lambda: stage.is_settled(name))
    obj = stage.find(FILES, file)
    keys = [segment["key"] for segment in obj["spec"]["request"]["segments"]]
    assert keys == [part_key("demo", name, second), part_key("demo", name, first)]
    assert sorted(stage.store.contents) == sorted(keys), "no receipt, no retried part"
    assert retried not in stage.list_parts(name)
    assert await stage.used() == 8
    claims = await stage.ledger.list_claims("demo", "files", 0)
    assert [claim.member for claim in claims] == [file]
    assert told(stage, name)["Succeeded"] == ("True", "Completed")
    assert stage.find(UPLOADS, name)["status"]["fileUid"] == obj["metadata"]["uid"]
    await stage.wait(lambda: stage.ready(file) == ("True", "Available"))
    await stage.kill()


@pytest.mark.parametrize("step", COMPLETIONS)
def test_a_kill_in_a_settlement_leaves_one_file(step):
    @in_virtual_time
    async def run():
        stage = Stage()
        stage.failpoints = TrippedFailpoints(step)
        await stage.boot()
        name = await stage.add_upload(b"12345", b"678")
        parts = stage.list_parts(name)
        await stage.add_part(name, b"retried")
        file = await stage.complete(name, *parts)
        await stage.wait(lambda: stage.failpoints.passed, what=step)
        await stage.kill()
        stage.failpoints = TrippedFailpoints("")
        await stage.start()
        await stage.wait(lambda: stage.is_settled(name))
        assert [f["metadata"]["name"] for f in stage.kube.list_objects(FILES)] == [file]
        assert stage.list_parts(name) == sorted(parts)
        assert len(stage.store.contents) == 2
        assert await stage.used() == 8
        assert await stage.reconcile(0) == 0
        assert await stage.prove(0) == 0
        await stage.kill()

    run()


@pytest.mark.parametrize("step", ["after-upload-outcome", *ENDINGS])
def test_a_kill_while_an_upload_expires_leaves_nothing(step):
    @in_virtual_time
    async def run():
        stage = Stage()
        stage.failpoints = TrippedFailpoints(step)
        await stage.boot()
        name = await stage.add_upload(b"12345")
        await stage.wait(lambda: stage.failpoints.passed, seconds=4000, what=step)
        await stage.kill()
        stage.failpoints = TrippedFailpoints("")
        await stage.start()
        await stage.wait(lambda: stage.is_settled(name))
        assert stage.find(UPLOADS, name)["spec"]["outcome"] == "Expired"
        assert stage.store.contents == {}
        assert await stage.used() == 0
        await stage.kill()

    run()


@in_virtual_time
async def test_a_file_that_is_deleted_before_its_upload_is_settled_does_not_come_back():
    stage = Stage()
    await stage.boot()
    name = await stage.add_upload(b"12345")
    await stage.kill()
    (part,) = stage.list_parts(name)
    file = await stage.complete(name, part)
    await stage.kube.create(FILES, compose_file(stage.find(UPLOADS, name)))
    await stage.kube.delete(FILES, file)
    await stage.start()
    await stage.wait(lambda: stage.is_settled(name))
    await stage.wait(lambda: stage.find(FILES, file) is None)
    await asyncio.sleep(60)
    assert stage.kube.list_objects(FILES) == []
    assert stage.store.contents == {}
    assert await stage.used() == 0
    await stage.kill()


@in_virtual_time
async def test_a_file_made_from_the_manifest_by_who_came_late_goes_again():
    stage = Stage()
    await stage.boot()
    name = await stage.add_upload(b"12345")
    (part,) = stage.list_parts(name)
    file = await stage.complete(name, part)
    manifest = stage.find(UPLOADS, name)
    await stage.wait(lambda: stage.is_settled(name))
    await stage.kube.delete(FILES, file)
    await stage.wait(lambda: stage.find(FILES, file) is None)
    await stage.kube.create(FILES, compose_file(manifest))
    await stage.wait(lambda: stage.find(FILES, file) is None, what="the late one's end")
    assert stage.store.contents == {}
    assert await stage.used() == 0
    await stage.kill()


@in_virtual_time
async def test_two_owners_settle_an_upload_with_one_file():
    stage = Stage()
    await stage.boot()
    name = await stage.add_upload(b"12345")
    twin = Settlement(Controllers(stage).storage, FileRecorder(stage.kube, stage.ledger))
    create = stage.kube.create
    raced = False

    async def create_slowly(plural: str, obj: Any) -> Any:
        nonlocal raced
        made = await create(plural, obj)
        if plural == FILES and not raced:
            # the twin finds the file there, and settles the Upload before this create has returned
            raced = True
            await twin.settle(stage.find(UPLOADS, name))
        return made

    stage.kube.create = create_slowly  # type: ignore[method-assign]
    file = await stage.complete(name, *stage.list_parts(name))
    await stage.wait(lambda: raced and stage.is_settled(name))
    await asyncio.sleep(60)
    obj = stage.find(FILES, file)
    assert obj is not None, "I9: the file that both have seen is gone"
    assert stage.find(UPLOADS, name)["status"]["fileUid"] == obj["metadata"]["uid"]
    assert await stage.used() == 5
    assert len(stage.store.contents) == 1
    await stage.kill()


@in_virtual_time
async def test_an_upload_deleted_with_kubectl_is_cancelled_and_goes():
    stage = Stage()
    await stage.boot()
    name = await stage.add_upload(b"12345")
    await stage.kube.delete(UPLOADS, name)
    await stage.wait(lambda: stage.find(UPLOADS, name) is None)
    assert stage.store.contents == {}
    assert await stage.used() == 0
    await stage.kill()


@in_virtual_time
async def test_a_settlement_waits_for_the_store():
    stage = Stage()
    await stage.boot()
    name = await stage.add_upload(b"12345")
    await stage.change(UPLOADS, name, {"spec": {"outcome": "Cancelled"}})
    stage.store.away = True
    await asyncio.sleep(120)
    assert not stage.is_settled(name)
    stage.store.away = False
    await stage.wait(lambda: stage.is_settled(name))
    assert stage.store.contents == {}
    await stage.kill()


@in_virtual_time
async def test_the_object_of_a_settled_upload_goes_after_a_day_and_its_file_stays():
    stage = Stage()
    controllers = await stage.boot()
    name = await stage.add_upload(b"12345")
    file = await stage.complete(name, *stage.list_parts(name))
    open_one = await stage.add_upload(b"1")
    await stage.wait(lambda: stage.is_settled(name))
    removal = build_removal(stage, controllers)
    await asyncio.sleep(DAY)
    assert await removal.sweep() == 0
    await asyncio.sleep(3600)
    assert await removal.sweep() == 2
    assert stage.find(UPLOADS, name) is None
    assert stage.find(UPLOADS, open_one) is None, "it has expired meanwhile"
    assert await stage.reconcile(0) == 0, "its parts are the file's"
    await stage.kube.delete(FILES, file)
    await stage.wait(lambda: stage.find(FILES, file) is None)
    assert stage.store.contents == {}
    await stage.kill()


@pytest.mark.parametrize("end", ["Cancelled", "Expired", "Completed"])
def test_a_name_used_again_leaves_the_earlier_ones_file_its_bytes(end: str) -> None:
    @in_virtual_time
    async def run() -> None:
        stage = Stage()
        controllers = await stage.boot()
        name = await stage.add_upload(b"12345")
        (part,) = stage.list_parts(name)
        file = await stage.complete(name, part)
        await stage.wait(lambda: stage.is_settled(name))
        removal = build_removal(stage, controllers)
        await asyncio.sleep(DAY + 3600)
        assert await removal.sweep() == 1
        # the same Idempotency-Key a day later
        await stage.add_upload(b"678", name=name)
        [new] = set(stage.list_parts(name)) - {part}
        if end == "Completed":
            await stage.complete(name, new)
        elif end == "Cancelled":
            await stage.change(UPLOADS, name, {"spec": {"outcome": end}})
        await stage.wait(lambda: stage.is_settled(name), seconds=4000)
        assert stage.find(UPLOADS, name)["spec"]["outcome"] == end
        assert stage.list_parts(name) == sorted([part, new] if end == "Completed" else [part])
        await stage.kube.delete(FILES, file)
        await stage.wait(lambda: stage.find(FILES, file) is None)
        await stage.kill()

    run()


@in_virtual_time
async def test_a_batch_keeps_the_bytes_of_a_file_whose_upload_is_not_settled():
    stage = Stage()
    await stage.boot()
    await stage.kill()
    name = await stage.add_upload(b"12345", purpose="batch")
    file = await stage.complete(name, *stage.list_parts(name))
    await stage.kube.create(FILES, compose_file(stage.find(UPLOADS, name)))
    request = {"accountName": "demo", "inputFileName": file}
    batch = {"metadata": {"name": "batch-a"}, "spec": {"request": request}}
    await stage.kube.create(BATCHES, batch)
    await stage.kube.delete(FILES, file)
    before = dict(stage.store.contents)
    controllers = await stage.start()
    await asyncio.sleep(300)
    assert stage.store.contents == before
    assert await stage.used() == 0
    assert controllers.files._leaving == {}, "it waits for the batch, and is not stuck"
    found = await stage.kube.get(BATCHES, "batch-a")
    await stage.kube.patch_status(BATCHES, found, {"work": "Settled"})
    await stage.wait(lambda: stage.find(FILES, file) is None)
    assert stage.store.contents == {}
    assert stage.is_settled(name)
    await stage.kill()


@in_virtual_time
async def test_a_file_put_back_from_a_backup_keeps_its_bytes():
    stage = Stage()
    await stage.boot()
    name = await stage.add_upload(b"12345")
    file = await stage.complete(name, *stage.list_parts(name))
    await stage.wait(lambda: stage.is_settled(name))
    lost = stage.find(FILES, file)
    stage.kube.remove(FILES, file)
    back = {"metadata": {"name": file}, "spec": lost["spec"]}
    made = await stage.kube.create(FILES, back)
    await stage.wait(lambda: stage.ready(file) == ("True", "Available"))
    await asyncio.sleep(60)
    assert stage.find(FILES, file)["metadata"]["uid"] == made["metadata"]["uid"]
    assert stage.find(UPLOADS, name)["status"]["fileUid"] == made["metadata"]["uid"]
    assert list(stage.store.contents.values()) == [b"12345"]
    await stage.kill()
