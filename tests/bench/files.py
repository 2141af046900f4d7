"""Files through the API over the same bytes put to and got from the bare store.

On a directory and on a real S3 server; and how much the API's memory grows with eight at once. The
bare store is what anybody would use: `cp`, a file that is written and synced, boto3. Downloads
have yardsticks beside it: the gateway's own adapter with and without the check of the digest, and a
bare server that checks nothing.
"""

import asyncio
import hashlib
import http.client
import shutil
import statistics
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import aclosing, closing
from functools import partial
from multiprocessing import get_context
from urllib.parse import urlsplit

import aiohttp
import xxhash

from gateway_core.api.resource import ObjectRef
from gateway_core.storage.content import stream_content
from gateway_core.storage.directory import DirectoryStore
from gateway_core.storage.objects import ObjectStore
from tests.bench.harness import BLOCK, Multipart, cut, serve_bare, time_work, watch_growth
from tests.bench.plain_stores import PlainBucket, PlainDirectory, PlainStore
from tests.bench.report import Report
from tests.servers.control_plane import free_ports
from tests.servers.replica import Replica
from tests.servers.s3 import S3Server, open_bucket
from tests.servers.world import World

SIZE = 50_000_000
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
_FORM = Multipart(CONTENT, "file", purpose="user_data")


async def measure_files(world: World, key: str, report: Report) -> None:
    """The two stores, each with an API process of its own that has served nothing else."""
    with Replica(world, "api") as api:
        store = DirectoryStore(world.config.store_directory)
        # beside the store, so on the same file system
        beside = world.config.store_directory.with_name("plain")
        beside.mkdir()
        try:
            folder = str(world.config.store_directory)
            async with serve_bare("object", free_ports().api, PLAIN, str(SIZE), folder) as bare:
                await _measure(api, key, store, PlainDirectory(beside), bare, "directory", report)
        finally:
            store.close()
            shutil.rmtree(beside)
    with (
        S3Server() as server,
        open_bucket(server, prefix="bench") as bucket,
        Replica(world, "api", **server.settings("bench")) as api,
    ):
        place = (PLAIN, str(SIZE), server.url, server.bucket, "bench")
        async with serve_bare("object", free_ports().api, *place, **server.credentials) as bare:
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
        kept: list[str] = []

        async def upload() -> None:
            kept.append(await _upload(session))

        async def download() -> None:
            await _download(session, kept[-1])

        steps = plain.steps(CONTENT)
        rounds = [
            {
                **{
                    step: await time_work(partial(asyncio.to_thread, steps[step])) for step in steps
                },
                "adapter": await time_work(
                    lambda: store.put_stream(PLAIN, cut(CONTENT), max_bytes=SIZE)
                ),
                "API": await time_work(upload),
            }
            for _ in range(ROUNDS)
        ]
        _report(f"files, {name}, 50 MB up", rounds, report, list(steps)[-1])
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as reader:
            path = f"/v1/files/{kept[-1]}/content"
            rounds = [
                {
                    "plain read": await time_work(partial(asyncio.to_thread, _read_plainly, plain)),
                    "adapter": await time_work(partial(_read, store.stream(PLAIN))),
                    "SHA-256 alone": await time_work(partial(_digest, hashlib.sha256)),
                    "XXH3 alone": await time_work(partial(_digest, xxhash.xxh3_128)),
                    "checked": await time_work(partial(_read, stream_content(store, [_REF]))),
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


async def _fetch(
    reader: ProcessPoolExecutor, base_url: str, path: str, headers: dict[str, str]
) -> float:
    """Seconds of a GET by a process that only takes bytes in, as on another machine.

    What a client in this event loop costs is otherwise most of what a download takes.
    """
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(reader, _get, base_url, path, headers)


def _get(base_url: str, path: str, headers: dict[str, str]) -> float:
    """Seconds from the request to the last byte."""
    buffer, got = bytearray(BLOCK), 0
    with closing(http.client.HTTPConnection(urlsplit(base_url).netloc, timeout=60)) as connection:
        connection.connect()
        begin = time.perf_counter()
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        assert answer.status == 200, answer.status
        while count := answer.readinto(buffer):
            got += count
        seconds = time.perf_counter() - begin
    assert got == SIZE, got
    return seconds


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
    data = _FORM.stream(0, SIZE)
    async with session.post("/v1/files", data=data, headers=_FORM.headers(SIZE)) as answer:
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
