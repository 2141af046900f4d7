"""Polls of a task over an empty FastAPI route of the same server."""

import os
import statistics

from tests.bench.harness import build_call, serve_bare
from tests.bench.load import build_request, run_load
from tests.bench.report import Report
from tests.servers.world import World

ROUNDS = 5
COUNT = int(os.environ.get("BENCH_POLLS", "10000"))
CONCURRENCY = 16


async def measure_polls(world: World, key: str, report: Report) -> None:
    """Measure a processing task and a completed one, in turn with the empty route."""
    api = world.config.ports.api
    async with world.client(key) as client, serve_bare("empty", api + 500):
        await client.simulate({"behaviour": "stall", "match": {"prompt_contains": "stalls"}})
        ended = (await client.create(prompt="ends")).body["id"]
        await client.wait_terminal([ended])
        processing = (await client.create(prompt="stalls")).body["id"]
        path = client.tasks_path
        targets = {
            "empty": (api + 500, build_request("GET", "/empty", {})),
            "processing": (api, build_call(key, "GET", f"{path}/{processing}")),
            "completed": (api, build_call(key, "GET", f"{path}/{ended}")),
        }
        rates = {name: list[float]() for name in targets}
        for _ in range(ROUNDS):
            for name, (port, request) in targets.items():
                load = await run_load(port, request, count=COUNT, concurrency=CONCURRENCY)
                assert load.statuses == {200: COUNT}, (name, load.statuses)
                rates[name].append(load.rate)
    for name in ("processing", "completed"):
        pairs = zip(rates[name], rates["empty"], strict=True)
        ratio = statistics.median(a / b for a, b in pairs)
        report.add(f"poll: {name} over an empty FastAPI route", ratio, "ratio", at_least=0.95)
    for name, values in rates.items():
        report.add(f"poll: {name}, rate", statistics.median(values), "1/s")
