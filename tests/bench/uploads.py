"""An Upload of 200 MB in parts beside the same bytes put to the bare store.

On a directory (`cp`, and a file that is written and synced) and on a real S3 server (boto3's
`put_object`): how long it takes as a whole, how long its completion does with and without an MD5,
and how much the API's memory grows meanwhile.
"""

import asyncio
import hashlib
import statistics
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp

from tests.bench.harness import Multipart, time_work, watch_growth
from tests.bench.plain_stores import PlainBucket, PlainDirectory, PlainStore
from tests.bench.report import Report
from tests.servers.replica import Replica
from tests.servers.s3 import S3Server
from tests.servers.world import World

SIZE = 200_000_000
PART = 64 * 2**20
AT_ONCE = 4
ROUNDS = 4
CONTENT = hashlib.shake_256(b"uploads").digest(SIZE)
MD5 = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()
_FORM = Multipart(CONTENT, "data")


async def measure_uploads(world: World, key: str, report: Report) -> None:
    """The two stores, each with an API process of its own, which has served nothing else."""
    with TemporaryDirectory(dir=world.config.directory) as folder, Replica(world, "api") as api:
        await _measure(api, key, PlainDirectory(Path(folder)), "directory", report)
    with S3Server() as server, Replica(world, "api", **server.settings("bench")) as api:
        await _measure(api, key, PlainBucket(server), "S3", report)


async def _measure(api: Replica, key: str, plain: PlainStore, name: str, report: Report) -> None:
    headers = {"Authorization": f"Bearer {key}"}
    steps = plain.steps(CONTENT)
    ratios = {step: list[float]() for step in steps}
    wholes, ends, checked, growths = [], [], [], []
    async with aiohttp.ClientSession(api.base_url, headers=headers) as session:
        for number in range(ROUNDS):
            bare = {
                step: await time_work(partial(asyncio.to_thread, work))
                for step, work in steps.items()
            }
            # the last one says its MD5, so that completion reads the bytes
            body = {"md5": MD5} if number == ROUNDS - 1 else {}
            whole, end, growth = await _upload(session, api.pid, body)
            growths.append(growth)
            (checked if body else ends).append(end)
            if not body:
                wholes.append(whole)
                for step, seconds in bare.items():
                    ratios[step].append(seconds / whole)
    what = f"uploads, {name}, 200 MB in parts"
    for step, values in ratios.items():
        # `cp` syncs nothing
        bar = {} if step == "cp" else {"at_least": 0.7}
        report.add(f"{what}, over {step}", statistics.median(values), "ratio", **bar)
    report.add(what, statistics.median(wholes), "s")
    report.add(f"{what}: completion", statistics.median(ends), "s")
    report.add(f"{what}: completion with its md5", statistics.median(checked), "s")
    report.add(f"{what}: API memory grows by", max(growths), "MiB", at_most=64)


async def _upload(
    session: aiohttp.ClientSession, pid: int, body: dict[str, str]
) -> tuple[float, float, float]:
    """Seconds of all, seconds of the completion, MiB that the process has grown by at most."""
    begin = time.perf_counter()
    async with watch_growth(pid) as growth:
        wanted = {"bytes": SIZE, "filename": "a", "mime_type": "x", "purpose": "batch"}
        upload = await _post(session, "", json=wanted)
        slots = asyncio.Semaphore(AT_ONCE)

        async def send(start: int) -> str:
            async with slots:
                size = min(PART, SIZE - start)
                data, headers = _FORM.stream(start, size), _FORM.headers(size)
                return await _post(session, f"/{upload}/parts", data=data, headers=headers)

        ids = await asyncio.gather(*(send(start) for start in range(0, SIZE, PART)))
        middle = time.perf_counter()
        await _post(session, f"/{upload}/complete", json={"part_ids": ids, **body})
        end = time.perf_counter()
    return end - begin, end - middle, growth.mib


async def _post(session: aiohttp.ClientSession, path: str, **options: object) -> str:
    """The id in the answer, which has to be a good one."""
    async with session.post(f"/v1/uploads{path}", **options) as answer:  # type: ignore[arg-type]
        body = await answer.json()
        assert answer.status == 200, body
    return str(body["id"])
