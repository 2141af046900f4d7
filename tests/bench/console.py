"""Pages of the console for an account with a long history, while it makes tasks; and live pages.

The server's time of a page is that of its line in the access log: from the request's head to the
end of the answer, in the API process.
"""

import asyncio
import os
import re
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import aiohttp

from gateway_apiserver.surfaces.console.live import PAUSE_SECONDS
from gateway_apiserver.surfaces.console.parts import BEING_READ
from gateway_core.accounts.passwords import generate_password, hash_password
from tests.bench.harness import ACCOUNT, in_background, read_cpu
from tests.bench.history import create_batches, create_files, create_finished, create_usage
from tests.bench.report import Report
from tests.servers.browser import Browser, Page
from tests.servers.tenants import describe_key, describe_user
from tests.servers.world import World, wait_for

TASKS, FILES, BATCHES, KEYS, DAYS = 10_000, 10_000, 1000, 50, 93
READS = 40
"""Reads of each page."""
PACE_SECONDS = 0.125
"""From one read to the next: 480 a minute. A person may read 600 pages a minute."""
RATE = 4.0
"""Creates a second of the load run."""
LIVE = 10
LIVE_SECONDS = 20.0
PERSON_SECONDS = 10.0
"""Time between two pages of a person who works in the console."""
HOME = f"/console/{ACCOUNT}"
PAGES = {
    "overview": HOME,
    "tasks": f"{HOME}/tasks",
    "tasks, completed": f"{HOME}/tasks?status=completed",
    "tasks, failed": f"{HOME}/tasks?status=failed",
    "tasks, of a model": f"{HOME}/tasks?model=sim-q4",
    "tasks, of a rare model": f"{HOME}/tasks?model=sim-rare",
    "tasks, of no model": f"{HOME}/tasks?model=sim-none",
    "playground": f"{HOME}/playground",
    "batches": f"{HOME}/batches",
    "files": f"{HOME}/files",
    "files, of a purpose": f"{HOME}/files?purpose=batch",
    "keys": f"{HOME}/keys",
    "guardrails": f"{HOME}/guardrails",
    "usage, 30 days": f"{HOME}/usage",
    "usage, 93 days": f"{HOME}/usage?start={{start}}",
    "members": f"{HOME}/members",
    "audit": f"{HOME}/audit",
}
WALKS = {"tasks": f"{HOME}/tasks", "batches": f"{HOME}/batches", "files": f"{HOME}/files"}
"""Lists of which the pages behind the first are read too."""
_DURATION = re.compile(r'"request_id":"(req_\w+)".*"duration_ms":([\d.]+)')


@dataclass
class Reads:
    """Reads of one page: ids of the requests, the client's milliseconds, CPU seconds of the API."""

    ids: list[str] = field(default_factory=list)
    took: list[float] = field(default_factory=list)
    cpu: float = 0.0


async def measure_console(world: World, key: str, report: Report) -> None:
    """Each page in turn under a load run; then the CPU of open live pages of an idle API."""
    password = generate_password()
    people = ("reader", "watcher")
    for name in people:
        user = describe_user(name, {ACCOUNT: "owner"}, passwordHash=hash_password(password))
        world.apply(user)
    world.apply(
        *(
            describe_key(world, ACCOUNT, limit={"window": "daily", "micros": 100_000_000})[1]
            for _ in range(KEYS)
        )
    )
    await _write_history(world)
    await asyncio.to_thread(world.run.restart, "api", {"GATEWAY_LOG_FORMAT": "json"})
    base = world.env["GATEWAY_BASE_URL"]
    async with Browser(base) as browser, Browser(base) as watcher:
        for each, name in zip((browser, watcher), people, strict=True):

            async def enter(each: Browser = each, name: str = name) -> bool:
                page = await each.sign_in(f"{name}@example.com", password)
                return page.status < 400 and (await each.get(f"{HOME}/members")).status == 200

            await wait_for(enter, what="a session")
        reads = {}
        async with _load(world, key):
            report.add("console: lists of the account after", await _wait_listed(browser), "s")
            load_before = await _use(world.run.pid_of("api"))
            for name, path in PAGES.items():
                reads[name] = await _read(world, browser, path)
            for name, path in WALKS.items():
                reads[f"{name}, next page"] = await _read(world, browser, path, walks=True)
            live = await _measure_live(world, watcher, load_before)
        _tell(report, reads, _read_times(world))
        report.add(f"console: API CPU for {LIVE} live pages under load", live, "% of a core")
        idle = await _use(world.run.pid_of("api"))
        live = await _measure_live(world, watcher, idle)
        report.add(f"console: API CPU for {LIVE} live pages", live, "% of a core", at_most=1.0)


async def _write_history(world: World) -> None:
    # the operator must not adopt the tasks before their status is written
    await asyncio.to_thread(world.run.kill, "operator")
    await create_finished(world, TASKS, _describe_task)
    await create_files(world, FILES)
    await create_batches(world, BATCHES)
    await create_usage(world, DAYS)
    await asyncio.to_thread(world.run.restart, "operator", {})


def _describe_task(number: int) -> tuple[str, str]:
    model = "sim-rare" if number % 500 == 0 else "sim-q4"
    return model, "Failed" if number % 200 == 0 else "Completed"


async def _wait_listed(browser: Browser) -> float:
    """Seconds from the first page to one that shows the rows, which the next ones read."""
    begin = time.monotonic()

    async def is_listed() -> bool:
        pages = [await browser.get(f"{HOME}/{noun}") for noun in ("tasks", "batches", "files")]
        return all('rel="next"' in page.body for page in pages)

    await wait_for(is_listed, what="the lists", seconds=120)
    return time.monotonic() - begin


async def _read(world: World, browser: Browser, path: str, *, walks: bool = False) -> Reads:
    """READS of a page, or of the pages behind it, by the link on each."""
    day = time.strftime("%Y-%m-%d", time.gmtime(time.time() - (DAYS - 1) * 86_400))
    path, pid, reads = path.format(start=day), world.run.pid_of("api"), Reads()
    if walks:
        path = _find_next(await browser.get(path))
    for _ in range(READS):
        cpu, begin = read_cpu(pid), time.perf_counter()
        page = await browser.get(path)
        reads.took.append((time.perf_counter() - begin) * 1000)
        reads.cpu += read_cpu(pid) - cpu
        assert page.status == 200, page.text
        reads.ids.append(page.headers["x-request-id"])
        if walks:
            path = _find_next(page)
        # a browser asks again when the page's stream of events tells it to
        pause = PAUSE_SECONDS if BEING_READ in page.body else PACE_SECONDS
        await asyncio.sleep(pause - (time.perf_counter() - begin))
    return reads


def _find_next(page: Page) -> str:
    at = page.body.index('rel="next"')
    href = page.body.rindex('href="', 0, at) + len('href="')
    return page.body[href : page.body.index('"', href)].replace("&amp;", "&")


def _read_times(world: World) -> dict[str, float]:
    log = world.config.log_directory / "api.log"
    return {name: float(taken) for name, taken in _DURATION.findall(log.read_text())}


def _tell(report: Report, reads: dict[str, Reads], times: dict[str, float]) -> None:
    report.add("console: machine load, 5 min", os.getloadavg()[1], "processes")
    for name, each in reads.items():
        took = [times[request] for request in each.ids]
        report.add(f"console: {name}, server p50", statistics.median(took), "ms")
        report.add(f"console: {name}, server p99", _find_p99(took), "ms", at_most=100.0)
        report.add(f"console: {name}, first read", took[0], "ms")
        report.add(f"console: {name}, client p99", _find_p99(each.took), "ms")
        cpu = each.cpu / len(took) * 1000
        report.add(f"console: {name}, API CPU", cpu, "ms")
    cpu = statistics.mean(each.cpu / len(each.took) for each in reads.values())
    share = cpu / PERSON_SECONDS * 100
    report.add("console: API CPU for a person", share, "% of a core", at_most=1.0)


def _find_p99(took: list[float]) -> float:
    return sorted(took)[int(0.99 * len(took))]


@asynccontextmanager
async def _load(world: World, key: str) -> AsyncIterator[None]:
    async def create() -> None:
        async with world.client(key, ACCOUNT) as client:
            while True:
                assert (await client.create()).status == 202
                await asyncio.sleep(1 / RATE)

    async with in_background(create()):
        yield


async def _measure_live(world: World, watcher: Browser, bare: float) -> float:
    """The API's CPU for open streams, as a share of one core, beyond what it uses without."""
    pid = world.run.pid_of("api")
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        cookies = "; ".join(f"{name}={value}" for name, value in watcher.cookies.items())
        for _ in range(LIVE):
            answer = await stack.enter_async_context(
                session.get(f"{watcher.base}{HOME}/events/tasks", headers={"Cookie": cookies})
            )
            assert answer.status == 200
        open_ = await _use(pid)
    return max(0.0, open_ - bare) / LIVE_SECONDS * 100


async def _use(pid: int) -> float:
    before = read_cpu(pid)
    await asyncio.sleep(LIVE_SECONDS)
    return read_cpu(pid) - before
