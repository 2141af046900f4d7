"""Task creation: through the API, with our own Kubernetes client, and the bare apiserver."""

import asyncio
import copy
import json
import ssl
import statistics
import time

from gateway_core.api.ids import mint_request_id
from gateway_core.api.task import GatewayTask
from tests.bench.harness import build_call, end_operator, load_api
from tests.bench.load import Load, build_request, run_load
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
    report.add("create: API over own Kubernetes client", ratio, "ratio", at_least=0.6)
    for name, loads in (("API", through_api), ("own Kubernetes client", through_client)):
        _tell(report, name, loads)
    _tell(report, "bare apiserver", [await _run_bare(world, template)])


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


async def _run_bare(world: World, template: dict[str, object]) -> Load:
    """The apiserver with prepared bytes: what it can do when the client costs next to nothing."""
    config = world.config
    connection = world.kube()._connection
    credentials = connection.read_credentials()
    context: ssl.SSLContext | None = connection.build_ssl(credentials)
    path = f"/apis/modelgateway.dev/v1alpha1/namespaces/{config.namespace}/gatewaytasks"
    headers = {"Content-Type": "application/json"}
    if credentials.authorization:
        headers["Authorization"] = credentials.authorization
    bodies = [json.dumps(_name(template)).encode() for _ in range(COUNT)]
    load = await run_load(
        config.ports.kube_apiserver,
        lambda number: build_request("POST", path, headers, bodies[number]),
        count=COUNT,
        concurrency=CONCURRENCY,
        tls=context,
    )
    assert load.statuses == {201: COUNT}, load.statuses
    return load
