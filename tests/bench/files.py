"""Files through the API over the same bytes put to and got from the same store directly.

On a directory and on a real S3 server; and how much the API's memory grows with eight at once.
"""

import asyncio
import hashlib
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import aiohttp
import psutil

from gateway_core.adapters.objectstore.directory import DirectoryStore
from gateway_core.ports.objects import ObjectStore
from tests.bench.report import Report
from tests.servers.replica import Replica
from tests.servers.s3_server import S3Server
from tests.servers.s3_store import open_bucket
from tests.servers.world import World

SIZE = 50_000_000
BLOCK = 256 * 1024
ROUNDS = 7
AT_ONCE = 8
CONTENT = hashlib.shake_256(b"files").digest(SIZE)
_BOUNDARY = "benchmark"
_HEAD = (
    f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n'
    f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
).encode()
_TAIL = f"\r\n--{_BOUNDARY}--\r\n".encode()


async def measure_files(world: World, key: str, report: Report) -> None:
    """The two stores, each with an API process of its own that has served nothing else."""
    with Replica(world, "api") as api:
        store = DirectoryStore(world.config.store_directory)
        try:
            await _measure(api, key, store, "directory", report)
        finally:
            store.close()
    with (
        S3Server() as server,
        open_bucket(server, prefix="bench") as bucket,
        Replica(world, "api", **server.settings("bench")) as api,
    ):
        await _measure(api, key, bucket, "S3", report)


async def _measure(api: Replica, key: str, store: ObjectStore, name: str, report: Report) -> None:
    headers = {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(api.base_url, headers=headers, read_bufsize=BLOCK) as session:

        async def put() -> None:
            await store.put_stream("files/bench/plain", _cut(CONTENT), max_bytes=SIZE)

        async def get() -> None:
            size = 0
            async for chunk in store.stream("files/bench/plain"):
                size += len(chunk)
            assert size == SIZE

        kept: list[str] = []

        async def upload() -> None:
            kept.append(await _upload(session))

        async def download() -> None:
            await _download(session, kept[-1])

        for step, ours, plainly in (("up", upload, put), ("down", download, get)):
            ratios, rates = [], []
            for _ in range(ROUNDS):
                direct, through = await _time(plainly), await _time(ours)
                ratios.append(direct / through)
                rates.append(SIZE / 2**20 / through)
            what = f"files, {name}, 50 MB {step}"
            report.add(f"{what}, over the store", statistics.median(ratios), "ratio", at_least=0.7)
            report.add(what, statistics.median(rates), "MiB/s")
        process = psutil.Process(api.pid)
        for step, many in (("up", upload), ("down", download)):
            growth = await _watch_memory(process, many)
            what = f"files, {name}, {AT_ONCE} at once {step}: API memory grows by"
            report.add(what, growth, "MiB", at_most=64)
        for file_id in kept:
            await (await session.delete(f"/v1/files/{file_id}")).read()
    await store.delete("files/bench/plain")


async def _upload(session: aiohttp.ClientSession) -> str:
    async def send() -> AsyncIterator[bytes]:
        yield _HEAD
        async for block in _cut(CONTENT):
            yield block
        yield _TAIL

    headers = {
        "Content-Type": f"multipart/form-data; boundary={_BOUNDARY}",
        "Content-Length": str(len(_HEAD) + SIZE + len(_TAIL)),
    }
    async with session.post("/v1/files", data=send(), headers=headers) as answer:
        body = await answer.json()
        assert answer.status == 200, body
    return str(body["id"])


async def _download(session: aiohttp.ClientSession, file_id: str) -> None:
    async with session.get(f"/v1/files/{file_id}/content") as answer:
        assert answer.status == 200
        size = 0
        async for chunk in answer.content.iter_any():
            size += len(chunk)
    assert size == SIZE


async def _watch_memory(process: psutil.Process, work: Callable[[], Awaitable[None]]) -> float:
    """By how many MiB the process grows at most while eight of these are under way."""
    before = peak = process.memory_info().rss

    async def look() -> None:
        nonlocal peak
        while True:
            peak = max(peak, process.memory_info().rss)
            await asyncio.sleep(0.02)

    looking = asyncio.create_task(look())
    try:
        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    finally:
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking
    return (peak - before) / 2**20


async def _time(work: Callable[[], Awaitable[None]]) -> float:
    begin = time.perf_counter()
    await work()
    return time.perf_counter() - begin


async def _cut(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), BLOCK):
        yield content[start : start + BLOCK]
