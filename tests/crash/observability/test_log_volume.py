"""F3: an outage of the API server with many tasks under way leaves few lines in the logs."""

import asyncio
import re
import time

import pytest

from tests.servers.world import wait_for
from tests.shares import long_run

pytestmark = [long_run]

TASKS = 500
OUTAGE_SECONDS = 30
MOST_LINES = 200
_REQUEST = re.compile(r"\banswered\b")
"""The line that each request leaves; their number is the client's to choose."""


def count_lines(world, process):
    return sum(not _REQUEST.search(line) for line in world.log(process).splitlines())


@pytest.mark.timeout(300)
async def test_outage_leaves_one_line_for_each_cause_and_period(world, payer, tally):
    told = tally("F3", f"log lines of {TASKS} tasks in {OUTAGE_SECONDS} s without the API server")
    await payer.simulate({"behaviour": "seconds", "seconds": f"5-{OUTAGE_SECONDS}"})
    slots = asyncio.Semaphore(16)

    async def create(number):
        async with slots:
            return await payer.create_surely(f"volume-{time.time()}-{number}", duration_seconds=3)

    running = await asyncio.gather(*map(create, range(TASKS)))
    before = {process: count_lines(world, process) for process in ("api", "operator")}
    async with told.trial(payer):
        await asyncio.to_thread(world.run.kill, "kube-apiserver")
        await asyncio.sleep(OUTAGE_SECONDS)
        await asyncio.to_thread(world.run.restart, "kube-apiserver")
        await payer.wait_terminal(running, seconds=120)
        for process, count in before.items():
            lines = count_lines(world, process) - count
            told.note(f"lines of {process}", lines)
            assert lines <= MOST_LINES, f"{process} wrote {lines} lines"
        failed = await wait_for(lambda: "repeated=" in world.log("operator"))
        assert failed
    told.check()
