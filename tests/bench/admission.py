"""What the admission of a paid call costs: the entrance's route over the same one without it."""

import statistics
import sys

from redis import Redis

from tests.bench.harness import end_operator, read_cpu
from tests.bench.load import build_request, run_load
from tests.bench.report import Report
from tests.servers.replica import Replica
from tests.servers.tenants import describe_account, describe_guardrail, describe_key
from tests.servers.world import World

ROUNDS = 5
COUNT = 6000
ACCOUNT = "bench-admission"
MUCH = 10**15
BUSY, ALONE = 32, 1
BODY = b'{"model":"sim-q4","prompt":"A lighthouse at dawn"}'


class _Entrance(Replica):
    """A process with the API's environment that serves `admission_app`."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "api")
        self._command = (sys.executable, "-m", "tests.bench.admission_app")


async def measure_admission(world: World, key: str, report: Report) -> None:
    """Rounds of either route in turn, for a key and a guardrail that have limits and rates.

    `key` is of an account without limits, and so is not used. The median of the differences has
    the bar, at a load that keeps the process busy; calls that come one by one share no exchange.

    Ends the operator, whose janitor would settle what is held for no task.
    """
    end_operator(world)
    limited = {"limit": {"micros": MUCH, "window": "7d"}, "requestsPerMinute": 1_000_000}
    made, key_object = describe_key(world, ACCOUNT, **limited)
    pool = describe_guardrail("grd-bench", ACCOUNT, made, **limited)
    funds = {"paidMicros": MUCH}
    world.apply(
        describe_account(ACCOUNT, funds=funds, requestsPerMinute=1_000_000), key_object, pool
    )
    headers = {"Authorization": f"Bearer {made.plaintext}", "Content-Type": "application/json"}
    requests = {name: build_request("POST", f"/{name}", headers, BODY) for name in ("paid", "free")}
    redis = Redis(port=world.config.ports.redis)
    with _Entrance(world) as entrance:

        async def run(name: str, count: int, concurrency: int) -> float:
            before = read_cpu(entrance.pid)
            load = await run_load(
                entrance.port, requests[name], count=count, concurrency=concurrency
            )
            assert load.statuses == {202: count}, (name, load.statuses)
            return (read_cpu(entrance.pid) - before) / count * 1000

        for name in requests:
            await run(name, 500, BUSY)
        redis.config_resetstat()
        for concurrency, bar in ((BUSY, {"at_most": 0.15}), (ALONE, {})):
            pairs = [
                (await run("paid", COUNT, concurrency), await run("free", COUNT, concurrency))
                for _ in range(ROUNDS)
            ]
            cost = statistics.median(paid - free for paid, free in pairs)
            named = f"admission: {concurrency} at once"
            report.add(f"{named}, CPU a call beyond the same route", cost, "ms", **bar)
            report.add(f"{named}, CPU a call in all", statistics.median(p for p, _ in pairs), "ms")
        calls = 2 * ROUNDS * COUNT
        stats = redis.info("commandstats")
        told = stats["cmdstat_evalsha"]
        others = sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("eval", "info"))
        report.add("admission: scripts run a call", told["calls"] / calls, "1", at_most=1.0)
        report.add("admission: other commands sent a call", others / calls, "1")
        report.add("admission: Redis CPU a call", told["usec"] / calls / 1000, "ms")
    redis.delete(*redis.scan_iter(f"gw:{{*/{ACCOUNT}}}:*"))
    redis.close()
