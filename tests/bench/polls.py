"""Polls of a task over an empty FastAPI route of the same server."""

import statistics
import subprocess
import sys

from tests.bench.harness import build_call
from tests.bench.load import build_request, run_load
from tests.bench.report import ROOT, Report
from tests.servers.world import World, wait_for

ROUNDS = 5
COUNT = 10_000
CONCURRENCY = 16


async def measure_polls(world: World, key: str, report: Report) -> None:
    """A processing task and a completed one, in turn with the empty route."""
    async with world.client(key) as client:
        await client.simulate({"behaviour": "stall", "match": {"prompt_contains": "stalls"}})
        ended = (await client.create(prompt="ends")).body["id"]
        await client.wait_terminal([ended])
        processing = (await client.create(prompt="stalls")).body["id"]
        path = client.tasks_path
        port = world.config.ports.api + 500
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.yardsticks", str(port)], cwd=ROOT
        )
        try:
            api = world.config.ports.api
            targets = {
                "empty": (port, build_request("GET", "/empty", {})),
                "processing": (api, build_call(key, "GET", f"{path}/{processing}")),
                "completed": (api, build_call(key, "GET", f"{path}/{ended}")),
            }
            await wait_for(lambda: _answers(*targets["empty"]), what="the empty route")
            rates = {name: list[float]() for name in targets}
            for _ in range(ROUNDS):
                for name, (target_port, request) in targets.items():
                    load = await run_load(
                        "127.0.0.1",
                        target_port,
                        lambda _, request=request: request,
                        count=COUNT,
                        concurrency=CONCURRENCY,
                    )
                    assert load.statuses == {200: COUNT}, (name, load.statuses)
                    rates[name].append(load.rate)
        finally:
            server.terminate()
            server.wait()
    for name in ("processing", "completed"):
        pairs = zip(rates[name], rates["empty"], strict=True)
        ratio = statistics.median(a / b for a, b in pairs)
        report.add(f"poll: {name} over an empty FastAPI route", ratio, "ratio", at_least=0.8)
    for name, values in rates.items():
        report.add(f"poll: {name}, rate", statistics.median(values), "1/s")


async def _answers(port: int, request: bytes) -> bool:
    try:
        await run_load("127.0.0.1", port, lambda _: request, count=1, concurrency=1)
    except OSError:
        return False
    return True
