"""An Upload of 200 MB in parts beside the same bytes put to the same store directly.

On the directory that the world has: how long it takes as a whole, how long its completion does with
and without an MD5, and how much the API's memory grows meanwhile.
"""

import asyncio
import hashlib
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import suppress

import aiohttp
import psutil

from gateway_core.adapters.objectstore.directory import DirectoryStore
from tests.bench.report import Report
from tests.servers.replica import Replica
from tests.servers.world import World

SIZE = 200_000_000
PART = 64 * 2**20
BLOCK = 256 * 1024
AT_ONCE = 4
ROUNDS = 3
CONTENT = hashlib.shake_256(b"uploads").digest(SIZE)
MD5 = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()
_BOUNDARY = "benchmark"
_HEAD = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="data"\r\n\r\n'.encode()
_TAIL = f"\r\n--{_BOUNDARY}--\r\n".encode()


async def measure_uploads(world: World, key: str, report: Report) -> None:
    """An API process of its own, which has served nothing else."""
    store = DirectoryStore(world.config.store_directory)
    headers = {"Authorization": f"Bearer {key}"}
    ratios, wholes, ends, checked, growths = [], [], [], [], []
    try:
        with Replica(world, "api") as api:
            process = psutil.Process(api.pid)
            async with aiohttp.ClientSession(api.base_url, headers=headers) as session:
                for number in range(ROUNDS):
                    begin = time.perf_counter()
                    await store.put_stream(
                        "files/bench/plain", _cut(0, SIZE, b"", b""), max_bytes=SIZE
                    )
                    direct = time.perf_counter() - begin
                    # one of them says its MD5, so that completion reads the bytes
                    body = {"md5": MD5} if number == ROUNDS - 1 else {}
                    whole, end, growth = await _upload(session, process, body)
                    growths.append(growth)
                    (checked if body else ends).append(end)
                    if not body:
                        wholes.append(whole)
                        ratios.append(direct / whole)
    finally:
        await store.delete("files/bench/plain")
        store.close()
    what = "uploads, directory, 200 MB in parts"
    report.add(f"{what}, over the store", statistics.median(ratios), "ratio")
    report.add(what, statistics.median(wholes), "s")
    report.add(f"{what}: completion", statistics.median(ends), "s")
    report.add(f"{what}: completion with its md5", statistics.median(checked), "s")
    report.add(f"{what}: API memory grows by", max(growths), "MiB", at_most=64)


async def _upload(
    session: aiohttp.ClientSession, process: psutil.Process, body: dict[str, str]
) -> tuple[float, float, float]:
    """Seconds of all, seconds of the completion, MiB that the process has grown by at most."""
    before = peak = process.memory_info().rss

    async def look() -> None:
        nonlocal peak
        while True:
            peak = max(peak, process.memory_info().rss)
            await asyncio.sleep(0.02)

    looking = asyncio.create_task(look())
    begin = time.perf_counter()
    try:
        wanted = {"bytes": SIZE, "filename": "a", "mime_type": "x", "purpose": "batch"}
        upload = await _post(session, "", json=wanted)
        slots = asyncio.Semaphore(AT_ONCE)

        async def send(start: int) -> str:
            async with slots:
                return await _send(session, upload, start, min(PART, SIZE - start))

        ids = await asyncio.gather(*(send(start) for start in range(0, SIZE, PART)))
        middle = time.perf_counter()
        await _post(session, f"/{upload}/complete", json={"part_ids": ids, **body})
        end = time.perf_counter()
    finally:
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking
    return end - begin, end - middle, (peak - before) / 2**20


async def _send(session: aiohttp.ClientSession, upload: str, start: int, size: int) -> str:
    headers = {
        "Content-Type": f"multipart/form-data; boundary={_BOUNDARY}",
        "Content-Length": str(len(_HEAD) + size + len(_TAIL)),
    }
    data = _cut(start, size, _HEAD, _TAIL)
    return await _post(session, f"/{upload}/parts", data=data, headers=headers)


async def _post(session: aiohttp.ClientSession, path: str, **options: object) -> str:
    """The id in the answer, which has to be a good one."""
    async with session.post(f"/v1/uploads{path}", **options) as answer:  # type: ignore[arg-type]
        body = await answer.json()
        assert answer.status == 200, body
    return str(body["id"])


async def _cut(start: int, size: int, head: bytes, tail: bytes) -> AsyncIterator[bytes]:
    yield head
    for place in range(start, start + size, BLOCK):
        yield CONTENT[place : min(place + BLOCK, start + size)]
    yield tail
