"""Files through the API over the same bytes put to and got from the bare store.

On a directory and on a real S3 server; and how much the API's memory grows with eight at once. The
bare store is what anybody would use: `cp`, a file that is written and synced, boto3. Downloads
have yardsticks beside it: the gateway's own adapter with and without the check of the digest, and a
bare server that checks nothing.
"""

import asyncio
import hashlib
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import aclosing, asynccontextmanager
from functools import partial

import aiohttp
import xxhash

from gateway_core.api.resource import ObjectRef
from gateway_core.storage.content import stream_content
from gateway_core.storage.directory import DirectoryStore
from gateway_core.storage.objects import ObjectStore
from tests.bench.harness import watch_growth
from tests.bench.plain_stores import PlainBucket, PlainDirectory, PlainStore
from tests.bench.reader import fetch, start_reader
from tests.bench.report import ROOT, Report
from tests.servers.control_plane import free_ports
from tests.servers.replica import Replica
from tests.servers.s3 import S3Server, open_bucket
from tests.servers.world import World, wait_for

SIZE = 50_000_000
BLOCK = 256 * 1024
ROUNDS = 7
AT_ONCE = 8
CONTENT = hashlib.shake_256(b"files").digest(SIZE)
PLAIN = "files/bench/plain"
BARS = ("write and fsync", "put_object", "adapter")
"""`cp` syncs nothing, and a plain read of a file comes from memory without a socket."""
_REF = ObjectRef(
    key=PLAIN,
    bytes=SIZE,
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    xxh3=xxhash.xxh3_128_hexdigest(CONTENT),
)
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
        # beside the store, so on the same file system
        beside = world.config.store_directory.with_name("plain")
        beside.mkdir()
        try:
            folder = [str(world.config.store_directory)]
            async with _serve_bare(folder, {}) as bare:
                await _measure(api, key, store, PlainDirectory(beside), bare, "directory", report)
        finally:
            store.close()
            shutil.rmtree(beside)
    with (
        S3Server() as server,
        open_bucket(server, prefix="bench") as bucket,
        Replica(world, "api", **server.settings("bench")) as api,
    ):
        place = [server.url, server.bucket, "bench"]
        async with _serve_bare(place, server.credentials) as bare:
            await _measure(api, key, bucket, PlainBucket(server), bare, "S3", report)


async def _measure(
    api: Replica,
    key: str,
    store: ObjectStore,
    plain: PlainStore,
    bare: str,
    name: str,
    report: Report,
) -> None:
    headers = {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(api.base_url, headers=headers, read_bufsize=BLOCK) as session:

        async def put() -> None:
            await store.put_stream(PLAIN, _cut(CONTENT), max_bytes=SIZE)

        kept: list[str] = []

        async def upload() -> None:
            kept.append(await _upload(session))

        async def download() -> None:
            await _download(session, kept[-1])

        steps = plain.steps(CONTENT)
        rounds = [
            {
                **{step: await _time(partial(asyncio.to_thread, steps[step])) for step in steps},
                "adapter": await _time(put),
                "API": await _time(upload),
            }
            for _ in range(ROUNDS)
        ]
        _report(f"files, {name}, 50 MB up", rounds, report, list(steps)[-1])
        with start_reader() as reader:
            path = f"/v1/files/{kept[-1]}/content"
            rounds = [
                {
                    "plain read": await _time(partial(asyncio.to_thread, _read_plainly, plain)),
                    "adapter": await _time(partial(_read, store.stream(PLAIN))),
                    "SHA-256 alone": await _time(partial(_digest, hashlib.sha256)),
                    "XXH3 alone": await _time(partial(_digest, xxhash.xxh3_128)),
                    "checked": await _time(partial(_read, stream_content(store, [_REF]))),
                    "bare": await _fetch(reader, bare, "/", {}),
                    "API": await _fetch(reader, api.base_url, path, headers),
                }
                for _ in range(ROUNDS)
            ]
        _report(f"files, {name}, 50 MB down", rounds, report, "plain read")
        for step, many in (("up", upload), ("down", download)):
            async with watch_growth(api.pid) as growth:
                await asyncio.gather(*(many() for _ in range(AT_ONCE)))
            what = f"files, {name}, {AT_ONCE} at once {step}: API memory grows by"
            report.add(what, growth.mib, "MiB", at_most=64)
        for file_id in kept:
            await (await session.delete(f"/v1/files/{file_id}")).read()
    await store.delete(PLAIN)


def _report(
    what: str, rounds: Sequence[Mapping[str, float]], report: Report, bare_store: str
) -> None:
    """The API over every other measure of the same rounds; BARS says which have a bar."""

    def compare(measure: str, other: str) -> float:
        return statistics.median(seconds[other] / seconds[measure] for seconds in rounds)

    for measure in rounds[0]:
        if measure in ("API", "SHA-256 alone", "XXH3 alone"):
            continue
        bar = {"at_least": 0.7} if measure in BARS else {}
        report.add(f"{what}, API over {measure}", compare("API", measure), "ratio", **bar)
    if "bare" in rounds[0]:
        ratio = compare("bare", bare_store)
        report.add(f"{what}, bare server over {bare_store}", ratio, "ratio")
    for measure in rounds[0]:
        rate = statistics.median(SIZE / 2**20 / seconds[measure] for seconds in rounds)
        report.add(f"{what}, {measure}", rate, "MiB/s")


@asynccontextmanager
async def _serve_bare(place: Sequence[str], env: Mapping[str, str]) -> AsyncIterator[str]:
    """A bare server of the plain object, as long as it is needed; its address."""
    port = free_ports().api
    command = [sys.executable, "-m", "tests.bench.yardsticks", str(port), PLAIN, str(SIZE)]
    server = subprocess.Popen([*command, *place], cwd=ROOT, env={**os.environ, **env})
    try:
        await wait_for(partial(_listens, port), what="the bare server")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


async def _fetch(
    reader: ProcessPoolExecutor, base_url: str, path: str, headers: dict[str, str]
) -> float:
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(reader, fetch, base_url, path, headers, SIZE)


def _read_plainly(plain: PlainStore) -> None:
    assert plain.get() == SIZE


async def _digest(begin: Callable[[bytes], object]) -> None:
    begin(CONTENT)


async def _read(stream: AsyncGenerator[bytes, None]) -> None:
    size = 0
    async with aclosing(stream) as chunks:
        async for chunk in chunks:
            size += len(chunk)
    assert size == SIZE


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


async def _time(work: Callable[[], Awaitable[None]]) -> float:
    begin = time.perf_counter()
    await work()
    return time.perf_counter() - begin


async def _cut(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), BLOCK):
        yield content[start : start + BLOCK]
