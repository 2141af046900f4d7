"""What `ports.objects` promises, asked of the fake, a directory and a bucket alike."""

import asyncio
import hashlib
import os
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import xxhash

from gateway_core.storage.directory import DirectoryStore
from gateway_core.storage.objects import (
    ObjectMissing,
    ObjectStore,
    ObjectTooLarge,
    StoredObject,
    StoreUnavailable,
)
from gateway_core.storage.s3.store import S3Store
from tests.fakes.objects import FakeObjects
from tests.servers.s3 import open_bucket

MIB = 1024 * 1024
SMALL_PAGE = 3
"""What an adapter reads or removes at once here, so that few objects are several pages."""
CLOCKS = timedelta(seconds=2)
"""How far a store's clock, which may count whole seconds, can be from this process's."""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DirectoryStore]:
    monkeypatch.setattr("gateway_core.storage.directory.PAGE", SMALL_PAGE)
    store = DirectoryStore(tmp_path / "objects")
    yield store
    store.close()


@pytest.fixture(
    params=["fake", "directory", "s3_double", pytest.param("s3_server", marks=pytest.mark.full)]
)
def objects(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ObjectStore]:
    match request.param:
        case "fake":
            yield FakeObjects()
        case "directory":
            yield request.getfixturevalue("directory")
        case server:
            monkeypatch.setattr("gateway_core.storage.s3.store.PAGE", SMALL_PAGE)
            with open_bucket(request.getfixturevalue(server)) as store:
                yield store


def describe(key: str, data: bytes) -> StoredObject:
    """What is told of bytes that were just written."""
    sha256, xxh3 = hashlib.sha256(data).hexdigest(), xxhash.xxh3_128_hexdigest(data)
    return StoredObject(key, len(data), sha256, xxh3)


async def flow(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        await asyncio.sleep(0)
        yield chunk


async def list_all(objects: ObjectStore, prefix: str = "") -> list[str]:
    return [entry.key async for entry in objects.list_entries(prefix)]


async def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


class TestObjects:
    async def test_put_object_is_read_back(self, objects: ObjectStore) -> None:
        stored = await objects.put("inputs/demo/a.json", b"abc")
        assert stored == describe("inputs/demo/a.json", b"abc")
        assert await objects.get("inputs/demo/a.json") == b"abc"
        assert (await objects.head("inputs/demo/a.json")).bytes == 3

    async def test_put_replaces(self, objects: ObjectStore) -> None:
        await objects.put("a", b"one")
        await objects.put("a", b"")
        assert await objects.get("a") == b""
        assert await list_all(objects) == ["a"]

    async def test_stream_is_stored_with_its_digest(self, objects: ObjectStore) -> None:
        parts = [os.urandom(size) for size in (0, 1, 70_000, 600_000, 300_000, 3)]
        whole = b"".join(parts)
        stored = await objects.put_stream("v/x.mp4", flow(*parts), max_bytes=len(whole))
        assert stored == describe("v/x.mp4", whole)
        assert await objects.get("v/x.mp4") == whole

    async def test_empty_stream_is_an_empty_object(self, objects: ObjectStore) -> None:
        assert (await objects.put_stream("a", flow(), max_bytes=0)).bytes == 0
        assert await objects.get("a") == b""
        assert [chunk async for chunk in objects.stream("a")] == []

    @pytest.mark.parametrize("size", [9, 2 * MIB])
    async def test_stream_over_the_limit_stores_nothing(
        self, objects: ObjectStore, size: int
    ) -> None:
        chunks = [b"x" * (size // 4)] * 6
        with pytest.raises(ObjectTooLarge):
            await objects.put_stream("a/b", flow(*chunks), max_bytes=size)
        with pytest.raises(ObjectMissing):
            await objects.get("a/b")
        assert await list_all(objects) == []

    async def test_source_that_fails_stores_nothing_and_keeps_what_was_there(
        self, objects: ObjectStore
    ) -> None:
        async def fail() -> AsyncIterator[bytes]:
            yield b"x" * MIB
            raise ConnectionResetError("the provider hung up")

        await objects.put("a", b"before")
        with pytest.raises(ConnectionResetError):
            await objects.put_stream("a", fail(), max_bytes=10 * MIB)
        assert await objects.get("a") == b"before"
        assert await list_all(objects) == ["a"]

    async def test_any_part_is_streamed(self, objects: ObjectStore) -> None:
        whole = os.urandom(1_000_000)
        await objects.put("a", whole)
        for start, length in (
            *[(0, None), (0, 0), (0, 1), (5, 700_000)],
            *[(999_999, 5), (2_000_000, None), (262_144, 1)],
        ):
            chunks = [chunk async for chunk in objects.stream("a", start, length)]
            assert b"".join(chunks) == whole[start : None if length is None else start + length]
            assert all(0 < len(chunk) <= MIB for chunk in chunks)

    async def test_every_chunk_is_examined_before_it_is_given(self, objects: ObjectStore) -> None:
        whole = os.urandom(3 * MIB + 5)
        await objects.put("a", whole)
        for start, length in ((0, None), (7, MIB + 1)):
            examined, given = bytearray(), b""
            async for chunk in objects.stream("a", start, length, examine=examined.extend):
                given += chunk
                assert examined[: len(given)] == given
            assert examined == given == whole[start : None if length is None else start + length]

    async def test_unknown_object_is_missing(self, objects: ObjectStore) -> None:
        await objects.put("a/b", b"")
        for key in ("a/c", "b", "b/c/d", "a/b/c", "a"):
            with pytest.raises(ObjectMissing):
                await objects.get(key)
            with pytest.raises(ObjectMissing):
                await objects.head(key)
            with pytest.raises(ObjectMissing):
                await anext(aiter(objects.stream(key)))
            await objects.delete(key)
        assert await list_all(objects) == ["a/b"]

    async def test_deleted_object_is_missing(self, objects: ObjectStore) -> None:
        await objects.put("a/b/c", b"1")
        await objects.put("a/d", b"2")
        await objects.delete("a/b/c")
        await objects.delete("a/b/c")
        assert await list_all(objects) == ["a/d"]

    async def test_keys_are_listed_by_any_prefix(self, objects: ObjectStore) -> None:
        for key in ("a", "ab/c", "ab/cd/e", "ab/d", "b/c"):
            await objects.put(key, b"")
        assert await list_all(objects) == ["a", "ab/c", "ab/cd/e", "ab/d", "b/c"]
        assert await list_all(objects, "a") == ["a", "ab/c", "ab/cd/e", "ab/d"]
        assert await list_all(objects, "ab/") == ["ab/c", "ab/cd/e", "ab/d"]
        assert await list_all(objects, "ab/c") == ["ab/c", "ab/cd/e"]
        assert await list_all(objects, "ab/cd/") == ["ab/cd/e"]
        assert await list_all(objects, "x/y") == []

    async def test_entries_tell_size_and_time(self, objects: ObjectStore) -> None:
        before = datetime.now(UTC) - CLOCKS
        await objects.put("a/b", b"12345")
        await objects.put_stream("a/c", flow(b"12", b"3"), max_bytes=3)
        entries = [entry async for entry in objects.list_entries("a/")]
        assert [(entry.key, entry.bytes) for entry in entries] == [("a/b", 5), ("a/c", 3)]
        assert all(before <= entry.modified <= datetime.now(UTC) + CLOCKS for entry in entries)

    async def test_listing_is_in_order_and_goes_on_anywhere(self, objects: ObjectStore) -> None:
        keys = ["a-b", "a.b/c", "a/b", "a/b-c", "a/c/d", "a/c/e", "a/d", "a0", "b/1", "b/2"]
        assert keys == sorted(keys)
        for key in reversed(keys):
            await objects.put(key, b"")
        for prefix in ("", "a", "a/", "a/c", "b/", "c"):
            for after in (
                *keys,
                *(f"{key}/" for key in keys),
                "",
                "a",
                "a/",
                "a/c/",
                "b",
                "c",
                "~",
            ):
                found = [e.key async for e in objects.list_entries(prefix, start_after=after)]
                assert found == [k for k in keys if k.startswith(prefix) and k > after], after

    async def test_listing_may_be_left_and_changed_under_way(self, objects: ObjectStore) -> None:
        keys = [f"a/{number:02}" for number in range(10)]
        for key in keys:
            await objects.put(key, b"")
        seen = []
        async with aclosing(objects.list_entries("a/")) as entries:
            async for entry in entries:
                seen.append(entry.key)
                await objects.delete(entry.key)
                if len(seen) == 7:
                    break
        assert seen == keys[:7]
        assert await list_all(objects) == keys[7:]

    async def test_many_are_deleted_at_once(self, objects: ObjectStore) -> None:
        keys = [f"a/{number % 3}/{number}" for number in range(10)]
        for key in (*keys, "a/kept"):
            await objects.put(key, b"")
        await objects.delete_many(iter([*keys, "a/never", keys[0], "a/kept/below"]))
        assert await list_all(objects) == ["a/kept"]
        await objects.delete_many([])
        with pytest.raises(ValueError, match="object key"):
            await objects.delete_many(["a/kept", "../a"])
        assert await list_all(objects) == ["a/kept"]

    async def test_key_that_leads_elsewhere_is_refused(self, objects: ObjectStore) -> None:
        for key in (
            *("", "/", "/a", "a/", "a//b", "..", "../a", "a/../b", "a/..", ".", "./a", "a/./b"),
            *("a\0b", "a\n", "a b", "ä", "a\\b", ".tmp-x", "a/.tmp-x", "x" * 256, "a/" * 600 + "b"),
        ):
            for refused in (
                objects.put(key, b""),
                objects.put_stream(key, flow(), max_bytes=1),
                objects.get(key),
                objects.head(key),
                objects.delete(key),
                anext(aiter(objects.stream(key))),
            ):
                with pytest.raises(ValueError, match="object key"):
                    await refused
        for prefix in ("/", "../", "a/../b", "a//", "./", "a\0", ".tmp-/"):
            with pytest.raises(ValueError, match="object key"):
                await list_all(objects, prefix)

    async def test_concurrent_puts_and_deletes_of_neighbours_do_not_disturb(
        self, objects: ObjectStore
    ) -> None:
        async def churn(number: int) -> None:
            key = f"a/b/{number}"
            for _ in range(10):
                await objects.put(key, b"x")
                await objects.delete(key)
            await objects.put(key, str(number).encode())

        if isinstance(objects, S3Store):
            # the server of the tests makes folders, and one that is being removed refuses a put
            await objects.put("a/b/stays", b"")
        await asyncio.gather(*(churn(number) for number in range(6)))
        await objects.delete("a/b/stays")
        assert await list_all(objects) == [f"a/b/{number}" for number in range(6)]


class TestDirectory:
    async def test_refused_stream_leaves_no_file(
        self, directory: DirectoryStore, tmp_path: Path
    ) -> None:
        with pytest.raises(ObjectTooLarge):
            await directory.put_stream("a/b", flow(b"x" * MIB, b"x"), max_bytes=MIB)
        assert list((tmp_path / "objects").iterdir()) == []

    async def test_cancelled_stream_leaves_no_file(
        self, directory: DirectoryStore, tmp_path: Path
    ) -> None:
        started = asyncio.Event()

        async def never_end() -> AsyncIterator[bytes]:
            while True:
                yield b"x" * MIB
                started.set()

        writing = asyncio.create_task(directory.put_stream("a", never_end(), max_bytes=10**12))
        await started.wait()
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        await wait_until(lambda: not list((tmp_path / "objects").iterdir()))

    async def test_empty_folders_go_with_their_last_object(
        self, directory: DirectoryStore, tmp_path: Path
    ) -> None:
        await directory.put("a/b/c", b"")
        await directory.delete("a/b/c")
        assert list((tmp_path / "objects").iterdir()) == []

    async def test_names_that_are_no_keys_are_not_listed(
        self, directory: DirectoryStore, tmp_path: Path
    ) -> None:
        await directory.put("a/b", b"")
        (tmp_path / "objects" / "lost+found").mkdir(mode=0)
        (tmp_path / "objects" / "a" / "of others").touch()
        assert await list_all(directory) == ["a/b"]

    async def test_leftovers_are_not_listed_and_go_after_a_day(
        self, directory: DirectoryStore, tmp_path: Path
    ) -> None:
        old, new = tmp_path / "objects/.tmp-old", tmp_path / "objects/.tmp-new"
        for path in (old, new):
            path.write_bytes(b"")
        past = time.time() - 25 * 3600
        os.utime(old, (past, past))
        assert await list_all(directory) == []
        DirectoryStore(tmp_path / "objects").close()
        assert not old.exists()
        assert new.exists()

    async def test_disk_error_is_unavailable(
        self, directory: DirectoryStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        def refuse(_: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", refuse)
        with pytest.raises(StoreUnavailable):
            await directory.put("a", b"x")
        with pytest.raises(StoreUnavailable):
            await directory.put_stream("a", flow(b"x"), max_bytes=1)
        assert list((tmp_path / "objects").iterdir()) == []

    async def test_key_under_another_object_is_unavailable(self, directory: DirectoryStore) -> None:
        await directory.put("a", b"x")
        with pytest.raises(StoreUnavailable):
            await directory.put("a/b", b"x")
        assert await list_all(directory) == ["a"]

    async def test_file_and_its_folders_are_synced_before_put_returns(
        self, directory: DirectoryStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        synced: list[str] = []
        fsync = os.fsync

        def note(descriptor: int) -> None:
            synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", note)
        await directory.put("a/b", b"x")
        root = str(tmp_path / "objects")
        assert synced[0].startswith(f"{root}/.tmp-")
        assert synced[1:] == [f"{root}/a", root]

    async def test_memory_is_flat_while_streaming(
        self, directory: DirectoryStore, tmp_path: Path
    ) -> None:
        async def flow_long() -> AsyncIterator[bytes]:
            for _ in range(1000):
                yield bytes(64 * 1024)

        tracemalloc.start()
        try:
            await directory.put_stream("a", flow_long(), max_bytes=10**9)
            size = 0
            async for chunk in directory.stream("a"):
                size += len(chunk)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert size == 1000 * 64 * 1024
        assert peak < 4 * MIB
