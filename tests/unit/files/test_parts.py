"""The MD5 of parts together: few are read at a time, and none twice."""

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncGenerator, Callable

import pytest

from gateway_core.api.resource import part_key
from gateway_core.files import parts as partdigests
from gateway_core.files.parts import MOST_AT_ONCE, PartDigests
from gateway_core.storage.objects import ObjectMissing, StoreUnavailable
from tests.fakes.clock import in_virtual_time
from tests.fakes.objects import FakeObjects


class Objects(FakeObjects):
    """Notes what is read at the same time; `gate` holds all reads up."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.gate, self.full = asyncio.Event(), asyncio.Event()
        self.gate.set()
        self.now_read, self.most_of_one, self.most = Counter[str](), 0, 0

    async def stream(
        self,
        key: str,
        start: int = 0,
        length: int | None = None,
        *,
        examine: Callable[[bytes], object] | None = None,
    ) -> AsyncGenerator[bytes, None]:
        assert examine is not None, "digested on the event loop"
        account = key.split("/")[1]
        self.reads += 1
        self.now_read[account] += 1
        self.most_of_one = max(self.most_of_one, self.now_read[account])
        self.most = max(self.most, self.now_read.total())
        if self.most == MOST_AT_ONCE:
            self.full.set()
        await self.gate.wait()
        async for chunk in super().stream(key, start, length, examine=examine):
            yield chunk
        self.now_read[account] -= 1


@pytest.fixture
def objects() -> Objects:
    return Objects()


def put(objects: Objects, account: str, upload: str, **parts: bytes) -> None:
    for part_id, content in parts.items():
        objects.contents[part_key(account, upload, part_id)] = content


def md5(content: bytes) -> bytes:
    return hashlib.md5(content, usedforsecurity=False).digest()


async def test_digest_of_a_part_is_read_once(objects: Objects) -> None:
    put(objects, "a", "u", p=b"123", q=b"45")
    digests = PartDigests(objects)
    for _ in range(3):
        assert await digests.find_md5("a", "u", ["p", "q"]) == md5(b"12345")
    assert objects.reads == 2
    assert await digests.find_md5("a", "u", ["q", "p"]) == md5(b"45123")
    put(objects, "a", "v", p=b"6")
    assert await digests.find_md5("a", "v", ["p"]) == md5(b"6")


async def test_removed_part_is_missing_though_its_digest_is_known(objects: Objects) -> None:
    put(objects, "a", "u", p=b"123")
    digests = PartDigests(objects)
    await digests.find_md5("a", "u", ["p"])
    objects.contents.clear()
    with pytest.raises(ObjectMissing):
        await digests.find_md5("a", "u", ["p"])


async def test_kept_digests_are_bounded(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partdigests, "MOST_KEPT", 2)
    digests = PartDigests(objects)
    for upload in "uvw":
        put(objects, "a", upload, p=upload.encode())
        await digests.find_md5("a", upload, ["p"])
    objects.reads = 0
    for upload in "vwu":
        await digests.find_md5("a", upload, ["p"])
    assert objects.reads == 1


async def test_concurrent_reads_are_bounded_and_shared(objects: Objects) -> None:
    digests = PartDigests(objects)
    objects.gate.clear()
    for account in "abc":
        for upload in "uv":
            put(objects, account, upload, p=b"1")
    under_way = [
        asyncio.create_task(digests.find_md5(account, upload, ["p"]))
        for account in "abc"
        for upload in "uvv"
    ]
    await asyncio.wait_for(objects.full.wait(), 30)
    objects.gate.set()
    assert await asyncio.gather(*under_way) == [md5(b"1")] * 9
    assert (objects.most, objects.reads) == (MOST_AT_ONCE, 6)


async def test_account_gives_its_second_slot_to_a_waiting_one(objects: Objects) -> None:
    digests = PartDigests(objects)
    objects.gate.clear()
    for account, upload in ("a", "u"), ("a", "v"), ("a", "w"), ("b", "u"):
        put(objects, account, upload, p=b"1")
    under_way = [asyncio.create_task(digests.find_md5("a", upload, ["p"])) for upload in "uvw"]
    await asyncio.wait_for(objects.full.wait(), 30)
    assert objects.most_of_one == MOST_AT_ONCE
    other = asyncio.create_task(digests.find_md5("b", "u", ["p"]))
    await asyncio.sleep(0)
    order: list[str] = []
    other.add_done_callback(lambda _: order.append("b"))
    under_way[2].add_done_callback(lambda _: order.append("a's third"))
    objects.gate.set()
    await asyncio.gather(other, *under_way)
    assert order == ["b", "a's third"]


@in_virtual_time
async def test_wait_for_a_digest_is_bounded() -> None:
    objects = Objects()
    digests, clock = PartDigests(objects), asyncio.get_running_loop().time
    objects.gate.clear()
    for account in "abc":
        put(objects, account, "u", p=b"1")
    under_way = [asyncio.create_task(digests.find_md5(account, "u", ["p"])) for account in "ab"]
    await objects.full.wait()
    # as long as a few Uploads take to be read through, by a store that is slow
    for account in "ac":
        began = clock()
        with pytest.raises(StoreUnavailable):
            await digests.find_md5(account, "u", ["p"])
        assert clock() - began == pytest.approx(120)
    objects.gate.set()
    await asyncio.gather(*under_way)
    assert await digests.find_md5("c", "u", ["p"]) == md5(b"1")
