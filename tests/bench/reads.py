"""What the API spends on a JSON read that a function of `routers` answers."""

import statistics

from tests.bench.harness import ACCOUNT, build_call, load_api, read_cpu, restart
from tests.bench.report import Report
from tests.servers.tenants import make_key, wait_status
from tests.servers.world import World

ROUNDS = 5
COUNT = 2000
CONCURRENCY = 8


async def measure_reads(world: World, key: str, report: Report) -> None:
    """Read the account, and a key and the list of keys by a management key, in turn."""
    await restart(world, "api", 1, {"GATEWAY_MANAGEMENT_CALLS_PER_MINUTE": "1000000"})
    pid = world.run.pid_of("api")
    async with world.client(key) as client:
        manager = make_key(world, ACCOUNT, "Management").plaintext
        await wait_status(client, 200, "/api/v1/management/keys", key=manager)
        body = {"name": "read often"}
        made = await client.request("POST", "/api/v1/management/keys", body=body, key=manager)
        paths = {
            "the account": (key, "/api/v1/me"),
            "a key": (manager, f"/api/v1/management/keys/{made.body['id']}"),
            "a list of keys": (manager, "/api/v1/management/keys"),
        }
        spent = {name: list[float]() for name in paths}
        for _ in range(ROUNDS):
            for name, (used, path) in paths.items():
                before = read_cpu(pid)
                request = build_call(used, "GET", path)
                await load_api(world, request, count=COUNT, concurrency=CONCURRENCY, status=200)
                spent[name].append((read_cpu(pid) - before) / COUNT)
    for name, values in spent.items():
        report.add(f"read: {name}, CPU of the API", statistics.median(values) * 1000, "ms")
