"""Task creation through the API over that with our own Kubernetes client."""

import asyncio
import copy
import statistics
import time

from gateway_core.api.ids import mint_request_id
from gateway_core.api.task import GatewayTask
from tests.bench.harness import build_call, end_operator, load_api
from tests.bench.load import Load
from tests.bench.report import Report
from tests.servers.world import World, read_task

ROUNDS = 4
COUNT = 1000
CONCURRENCY = 32


async def measure_creates(world: World, key: str, report: Report) -> None:
    """Rounds of each kind in turn, so that a drift of the machine's speed hits all alike.

    Ends the operator.
    """
    end_operator(world)
    async with world.client(key) as client:
        answer = await client.create()
        template = read_task(world, answer.body["id"])
        request = build_call(key, "POST", client.tasks_path, client.body())
    for field in ("uid", "resourceVersion", "creationTimestamp", "managedFields", "generation"):
        template["metadata"].pop(field, None)
    template.pop("status", None)
    through_api, through_client = list[Load](), list[Load]()
    for _ in range(ROUNDS):
        through_client.append(await asyncio.to_thread(_run_client, world, template))
        through_api.append(
            await load_api(world, request, count=COUNT, concurrency=CONCURRENCY, status=202)
        )
    pairs = zip(through_api, through_client, strict=True)
    ratio = statistics.median(a.rate / b.rate for a, b in pairs)
    report.add("create: API over own Kubernetes client", ratio, "ratio", at_least=0.75)
    for name, loads in (("API", through_api), ("own Kubernetes client", through_client)):
        _tell(report, name, loads)


def _tell(report: Report, name: str, loads: list[Load]) -> None:
    report.add(f"create: {name}, rate", statistics.median(x.rate for x in loads), "1/s")
    for share in (0.5, 0.99):
        value = statistics.median(x.percentile(share) for x in loads)
        report.add(f"create: {name}, p{share * 100:g}", value * 1000, "ms")


def _name(template: dict[str, object]) -> dict[str, object]:
    obj = copy.deepcopy(template)
    obj["metadata"]["name"] = "task-" + mint_request_id()[4:]  # type: ignore[index]
    return obj


def _run_client(world: World, template: dict[str, object]) -> Load:
    """The client in an event loop of its own, as it runs in the API."""

    async def run() -> Load:
        load, left = Load(), iter([_name(template) for _ in range(COUNT)])
        async with world.kube() as kube:

            async def worker() -> None:
                for obj in left:
                    begin = time.perf_counter()
                    await kube.create(GatewayTask.plural, obj)
                    load.latencies.append(time.perf_counter() - begin)

            begin = time.perf_counter()
            await asyncio.gather(*(worker() for _ in range(CONCURRENCY)))
            load.seconds = time.perf_counter() - begin
        return load

    return asyncio.run(run())
