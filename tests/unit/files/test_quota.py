"""Storage quota of an account: claims within the limit, and rebuilds from the record."""

import asyncio
from typing import Any

import pytest

from gateway_core.api.errors import Unavailable
from gateway_core.files.quota import (
    StorageFull,
    StorageQuota,
    read_members,
    rebuild_pool,
)
from gateway_core.kube.errors import KubernetesUnavailable
from tests.fakes.clock import in_virtual_time
from tests.fakes.kubernetes import FakeKubernetes
from tests.fakes.storage import FakeStorage

LIMIT = 1000


def put_file(kube: FakeKubernetes, name: str, size: int, **request: Any) -> None:
    about = {"accountName": "demo", "purpose": "user_data", "bytes": size, **request}
    meta = {"name": name, "finalizers": ["modelgateway.dev/stored-bytes"]}
    kube.put("gatewayfiles", {"metadata": meta, "spec": {"request": about}})


def put_upload(
    kube: FakeKubernetes, name: str, size: int, outcome: str, *, work: str = "", file: str = ""
) -> None:
    spec: dict[str, Any] = {"request": {"accountName": "demo", "bytes": size}, "outcome": outcome}
    if file:
        spec["completion"] = {"fileName": file}
    kube.put(
        "gatewayuploads",
        {"metadata": {"name": name}, "spec": spec, "status": {"work": work} if work else {}},
    )


class Bench:
    def __init__(self) -> None:
        self.kube = FakeKubernetes()
        self.ledger = FakeStorage()
        self.gate = StorageQuota(self.kube, self.ledger)

    async def read_members(self) -> dict[str, int]:
        claims = await self.ledger.list_claims("demo", "files", 0)
        return {claim.member: claim.bytes for claim in claims}


@pytest.fixture
async def bench() -> Bench:
    return Bench()


async def test_members_of_a_pool_follow_from_the_record(bench: Bench) -> None:
    put_file(bench.kube, "file-a", 1)
    put_file(bench.kube, "file-foreign", 2, accountName="other")
    put_file(bench.kube, "file-t", 4, purpose="temporary")
    put_file(bench.kube, "file-gone", 8)
    await bench.kube.delete("gatewayfiles", "file-gone")
    put_upload(bench.kube, "upload-p", 16, "Pending")
    put_upload(bench.kube, "upload-c", 32, "Cancelled")
    put_upload(bench.kube, "upload-e", 64, "Expired")
    put_upload(bench.kube, "upload-made", 1, "Completed", file="file-a")
    put_upload(bench.kube, "upload-due", 128, "Completed", file="file-due")
    put_upload(bench.kube, "upload-undone", 8, "Completed", file="file-gone")
    put_upload(bench.kube, "upload-old", 256, "Completed", file="file-old", work="Settled")
    found = await read_members(bench.kube, "demo", "files")
    assert found == {"file-a": 1, "upload-p": 16, "file-due": 128}
    assert await read_members(bench.kube, "demo", "temporary") == {"file-t": 4}


async def test_lost_pool_is_rebuilt_on_demand(bench: Bench) -> None:
    put_file(bench.kube, "file-a", 600)
    await bench.gate.check_room("demo", "files", 400, LIMIT)
    with pytest.raises(StorageFull):
        await bench.gate.check_room("demo", "files", 401, LIMIT)
    with pytest.raises(StorageFull):
        await bench.gate.claim("demo", "files", "file-b", 401, LIMIT)
    await bench.gate.claim("demo", "files", "file-b", 400, LIMIT)
    assert (await bench.gate.read_used("demo", "files")).bytes == LIMIT
    await bench.gate.release("demo", "files", "file-b")
    bench.ledger.lose()
    await bench.gate.move("demo", "files", "upload-x", "file-x")
    assert (await bench.gate.read_used("demo", "files")).bytes == 600


async def test_pool_is_bounded_in_files_and_in_bytes(
    bench: Bench,
) -> None:
    bench.gate = StorageQuota(bench.kube, bench.ledger, {"files": 2})
    put_file(bench.kube, "file-a", 1)
    await bench.gate.check_room("demo", "files", 0, LIMIT)
    await bench.gate.claim("demo", "files", "file-b", 1, LIMIT)
    with pytest.raises(StorageFull, match="has 2 files"):
        await bench.gate.check_room("demo", "files", 0, LIMIT)
    with pytest.raises(StorageFull, match="has 2 files"):
        await bench.gate.claim("demo", "files", "file-c", 1, LIMIT)
    await bench.gate.claim("demo", "files", "file-b", 1, LIMIT)
    await bench.gate.release("demo", "files", "file-b")
    with pytest.raises(StorageFull, match="storage limit"):
        await bench.gate.claim("demo", "files", "file-c", LIMIT, LIMIT)
    with pytest.raises(StorageFull, match="storage limit"):
        await bench.gate.check_room("demo", "files", LIMIT, LIMIT)


async def test_concurrent_claims_on_a_lost_pool_read_the_record_once(bench: Bench) -> None:
    put_file(bench.kube, "file-a", 10)
    answers = await asyncio.gather(
        *(bench.gate.claim("demo", "files", f"file-{n}", 99, LIMIT) for n in range(20)),
        return_exceptions=True,
    )
    assert sum(answer is None for answer in answers) == 10
    assert all(answer is None or isinstance(answer, StorageFull) for answer in answers)
    assert bench.kube.calls.count(("list_page", "gatewayfiles")) == 1


@in_virtual_time
async def test_slow_rebuild_goes_on_for_minutes_until_another_has_begun() -> None:
    bench = Bench()
    for number in range(600):
        put_file(bench.kube, f"file-{number:04}", 1)
    real = bench.kube.list_page
    pages = 0

    async def list_slowly(plural: str, **options: Any) -> Any:
        nonlocal pages
        pages += 1
        await asyncio.sleep(12)
        bench.ledger.now += 12
        return await real(plural, **options)

    bench.kube.list_page = list_slowly  # type: ignore[method-assign]
    assert await rebuild_pool(bench.kube, bench.ledger, "demo", "files")
    assert pages > 12
    assert len(await bench.read_members()) == 600
    await bench.ledger.mark_stale("demo", "files")
    rebuilding = asyncio.create_task(rebuild_pool(bench.kube, bench.ledger, "demo", "files"))
    await asyncio.sleep(20)
    bench.ledger.lose()
    other = await bench.ledger.begin_rebuild("demo", "files")
    assert other is not None
    before = pages
    assert not await rebuilding
    assert pages <= before + 1, "it reads no further"
    assert await bench.ledger.finish_rebuild("demo", "files", other, {})


async def test_rebuild_counts_files_made_and_deleted_meanwhile(
    bench: Bench,
) -> None:
    """Each of these is told in its place of the rebuild's two lists."""
    put_file(bench.kube, "file-dropped", 2)
    put_upload(bench.kube, "upload-p", 4, "Pending")
    real = bench.kube.list_page
    lists = 0

    async def list_page(plural: str, **options: Any) -> Any:
        nonlocal lists
        page = await real(plural, **options)
        lists += 1
        put_file(bench.kube, f"file-{lists}", 100)
        await bench.gate.confirm("demo", "files", f"file-{lists}", 100, LIMIT)
        if lists == 2:
            await bench.kube.delete("gatewayfiles", "file-dropped")
            await bench.gate.release("demo", "files", "file-dropped")
            put_upload(bench.kube, "upload-p", 4, "Completed", file="file-p")
            await bench.gate.move("demo", "files", "upload-p", "file-p")
        return page

    bench.kube.list_page = list_page  # type: ignore[method-assign]
    assert await rebuild_pool(bench.kube, bench.ledger, "demo", "files")
    bench.kube.list_page = real  # type: ignore[method-assign]
    assert await bench.read_members() == {"file-1": 100, "file-2": 100, "file-p": 4}
    assert await bench.read_members() == await read_members(bench.kube, "demo", "files")


async def test_lost_claim_does_not_exceed_the_limit(bench: Bench) -> None:
    await bench.gate.claim("demo", "files", "file-a", 600, LIMIT)
    bench.ledger.lose()
    await bench.gate.claim("demo", "files", "file-b", 600, LIMIT)
    put_file(bench.kube, "file-a", 600)
    with pytest.raises(StorageFull):
        await bench.gate.confirm("demo", "files", "file-a", 600, LIMIT)
    assert await bench.read_members() == {"file-b": 600}


async def test_claims_fail_without_pool_and_record(
    bench: Bench,
) -> None:
    bench.kube.away = True
    with pytest.raises(Unavailable):
        await bench.gate.claim("demo", "files", "file-a", 1, LIMIT)
    with pytest.raises(KubernetesUnavailable):
        await rebuild_pool(bench.kube, bench.ledger, "demo", "files")
    bench.kube.away = False
    # those that failed keep nobody else from it
    await bench.gate.claim("demo", "files", "file-a", 1, LIMIT)
    bench.ledger.away = True
    with pytest.raises(Unavailable):
        await bench.gate.read_used("demo", "files")
    # the operator does what could not be told
    await bench.gate.release("demo", "files", "file-a")
    await bench.gate.confirm("demo", "files", "file-a", 1, LIMIT)


async def test_wait_for_the_rebuild_of_another_process_is_bounded(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = await bench.ledger.begin_rebuild("demo", "files")
    assert token is not None
    waiting = asyncio.create_task(bench.gate.read_used("demo", "files"))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    assert await bench.ledger.finish_rebuild("demo", "files", token, {"file-a": 7})
    assert (await waiting).bytes == 7
    await bench.ledger.mark_stale("demo", "files")
    assert await bench.ledger.begin_rebuild("demo", "files") is not None
    monkeypatch.setattr("gateway_core.files.quota.WAIT_SECONDS", 0.3)
    with pytest.raises(Unavailable):
        await bench.gate.read_used("demo", "files")
