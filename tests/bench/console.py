"""Pages of the console for an account with 10,000 tasks, while it makes more; and live pages."""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import aiohttp

from gateway_core.accounts.passwords import generate_password, hash_password
from tests.bench.harness import ACCOUNT, read_cpu
from tests.bench.report import Report
from tests.bench.retention import create_finished
from tests.servers.browser import Browser
from tests.servers.tenants import describe_user
from tests.servers.world import World, wait_for

TASKS = 10_000
READS = 40
"""Reads of each page; a person may read 600 pages a minute."""
RATE = 4.0
"""Creates a second of the load run."""
LIVE = 10
LIVE_SECONDS = 20.0
HOME = f"/console/{ACCOUNT}"
PAGES = {
    "overview": HOME,
    "tasks": f"{HOME}/tasks",
    "tasks, completed": f"{HOME}/tasks?phase=Completed",
    "tasks, of a model": f"{HOME}/tasks?model=sim-q4",
    "tasks, failed": f"{HOME}/tasks?phase=Failed",
    "keys": f"{HOME}/keys",
    "usage": f"{HOME}/usage",
}


async def measure_console(world: World, key: str, report: Report) -> None:
    """Each page in turn under a load run; then the CPU of open live pages of an idle API."""
    password = generate_password()
    people = ("reader", "watcher")
    for name in people:
        user = describe_user(name, {ACCOUNT: "owner"}, passwordHash=hash_password(password))
        world.apply(user)
    # nobody is to take the tasks for new ones before they have their end
    await asyncio.to_thread(world.run.kill, "operator")
    await create_finished(world, TASKS)
    await asyncio.to_thread(world.run.restart, "operator", {})
    base = world.env["GATEWAY_BASE_URL"]
    async with Browser(base) as browser, Browser(base) as watcher:
        for each, name in zip((browser, watcher), people, strict=True):

            async def enter(each: Browser = each, name: str = name) -> bool:
                await each.sign_in(f"{name}@example.com", password)
                return (await each.get(HOME)).status == 200

            await wait_for(enter, what="a session")
        async with _load(world, key):
            for name, path in PAGES.items():
                await _measure_page(browser, name, path, report)
            await _walk_back(browser, report)
        await _measure_live(world, watcher, report)


async def _measure_page(browser: Browser, name: str, path: str, report: Report) -> None:
    took = []
    for _ in range(READS):
        begin = time.perf_counter()
        page = await browser.get(path)
        took.append((time.perf_counter() - begin) * 1000)
        assert page.status == 200, page.text
    _add(report, name, took)


async def _walk_back(browser: Browser, report: Report) -> None:
    """The pages behind the first one, by the link on each."""
    took, path = [], f"{HOME}/tasks"
    for _ in range(READS):
        page = await browser.get(path)
        at = page.body.index('rel="next"')
        href = page.body.rindex('href="', 0, at) + len('href="')
        path = page.body[href : page.body.index('"', href)].replace("&amp;", "&")
        begin = time.perf_counter()
        assert (await browser.get(path)).status == 200
        took.append((time.perf_counter() - begin) * 1000)
    _add(report, "tasks, next page", took)


def _add(report: Report, name: str, took: list[float]) -> None:
    p99 = sorted(took)[int(0.99 * len(took))]
    report.add(f"console: {name}, p50", statistics.median(took), "ms")
    report.add(f"console: {name}, p99", p99, "ms", at_most=100.0)


@asynccontextmanager
async def _load(world: World, key: str) -> AsyncIterator[None]:
    async def create() -> None:
        async with world.client(key, ACCOUNT) as client:
            while True:
                assert (await client.create()).status == 202
                await asyncio.sleep(1 / RATE)

    loading = asyncio.create_task(create())
    try:
        yield
        assert not loading.done(), loading
    finally:
        loading.cancel()
        with suppress(asyncio.CancelledError):
            await loading


async def _measure_live(world: World, watcher: Browser, report: Report) -> None:
    """The API's CPU for open streams that nothing wakes, as a share of one core."""
    pid = world.run.pid_of("api")
    bare = await _use(pid)
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        cookies = "; ".join(f"{name}={value}" for name, value in watcher.cookies.items())
        for _ in range(LIVE):
            answer = await stack.enter_async_context(
                session.get(f"{watcher.base}{HOME}/events", headers={"Cookie": cookies})
            )
            assert answer.status == 200
        open_ = await _use(pid)
    share = max(0.0, open_ - bare) / LIVE_SECONDS * 100
    report.add(f"console: API CPU for {LIVE} live pages", share, "% of a core", at_most=1.0)


async def _use(pid: int) -> float:
    before = read_cpu(pid)
    await asyncio.sleep(LIVE_SECONDS)
    return read_cpu(pid) - before
