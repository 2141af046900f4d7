"""A bucket that hangs: slow calls leave threads to others, and abandoned ones hold no memory."""

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Any, cast

import pytest

from gateway_core.storage.objects import MOST_STREAMS
from gateway_core.storage.s3 import store as store_module
from gateway_core.storage.s3.store import S3Store
from tests.fakes.clock import in_virtual_time

SMALL = 4096
"""A part of these tests."""


class HangingClient:
    """Takes everything; calls named in `hanging` wait for `gate`."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.hanging: set[str] = set()
        self.under_way: list[str] = []
        self.aborted = 0

    def _do(self, call: str) -> None:
        self.under_way.append(call)
        if call in self.hanging:
            self.gate.wait(60)
        self.under_way.remove(call)

    def put_object(self, **_: Any) -> None:
        self._do("put")

    def create_multipart_upload(self, **_: Any) -> dict[str, str]:
        return {"UploadId": "1"}

    def upload_part(self, **_: Any) -> dict[str, str]:
        self._do("part")
        return {"ETag": "e"}

    def complete_multipart_upload(self, **_: Any) -> None:
        self._do("complete")

    def abort_multipart_upload(self, **_: Any) -> None:
        self.aborted += 1

    def close(self) -> None:
        pass


class Data(bytearray):
    """Bytes of which one can tell that nobody holds them any more."""


@pytest.fixture
def client() -> HangingClient:
    return HangingClient()


@pytest.fixture
def store(client: HangingClient) -> Iterator[S3Store]:
    made = S3Store(cast("Any", client), "objects")
    yield made
    client.gate.set()
    made.close()


async def flow() -> AsyncIterator[bytes]:
    yield bytes(SMALL + 1)


async def give_up(store: S3Store) -> weakref.ref[Data]:
    """Waits a moment for a put; what it was to put."""
    data = Data(1000)
    with suppress(TimeoutError):
        async with asyncio.timeout(0.001):
            await store.put("b", cast("bytes", data))
    return weakref.ref(data)


async def wait_until(condition: Callable[[], Any], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_hanging_parts_leave_threads_to_small_calls(
    store: S3Store, client: HangingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "PART_BYTES", SMALL)
    client.hanging = {"part"}
    count = MOST_STREAMS
    puts = [
        asyncio.create_task(store.put_stream(f"a/{n}", flow(), max_bytes=10**9))
        for n in range(count)
    ]
    await wait_until(lambda: client.under_way.count("part") == count)
    await asyncio.wait_for(store.put("b", b"small"), 60)
    for put in puts:
        put.cancel()
    await asyncio.wait(puts, timeout=5)
    calls = [store.put("b", b"small") for _ in range(2 * count)]
    await asyncio.wait_for(asyncio.gather(*calls), 60)
    client.gate.set()
    await wait_until(lambda: client.aborted == count)


async def test_abandoned_calls_release_their_data(store: S3Store, client: HangingClient) -> None:
    client.hanging = {"put"}
    stuck = [asyncio.create_task(store.put("a", b"x")) for _ in range(store_module.THREADS)]
    await wait_until(lambda: len(client.under_way) == store_module.THREADS)
    held = [await give_up(store) for _ in range(100)]
    gc.collect()
    # the traceback of the last cancellation may be about still
    assert [ref for ref in held[:-1] if ref() is not None] == []
    client.gate.set()
    await asyncio.gather(*stuck)
    await asyncio.wait_for(store.put("a", b"x"), 60)


@in_virtual_time
async def test_stream_waits_for_a_slot() -> None:
    """What the operator stores is not to be done again because others were slow."""
    client = HangingClient()
    store = S3Store(cast("Any", client), "bucket")

    async def drip() -> AsyncIterator[bytes]:
        for _ in range(600):
            await asyncio.sleep(1)
            yield b"x"
        raise RuntimeError("broke off")

    async def wait() -> AsyncIterator[bytes]:
        begun.append(asyncio.get_running_loop().time())
        raise RuntimeError("broke off")
        yield b""

    begun = list[float]()
    drips = [
        asyncio.create_task(store.put_stream(f"a/{n}", drip(), max_bytes=10**9))
        for n in range(MOST_STREAMS)
    ]
    await asyncio.sleep(0)
    begin = asyncio.get_running_loop().time()
    with pytest.raises(RuntimeError):
        await store.put_stream("b", wait(), max_bytes=10**9)
    assert begun == [pytest.approx(begin + 600)]
    await asyncio.gather(*drips, return_exceptions=True)
    store.close()
    assert client.under_way == []
