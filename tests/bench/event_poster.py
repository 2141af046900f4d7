"""A process that posts Events through kopf as the operator does, and prints the CPU of one.

`python -m tests.bench.event_poster KUBECONFIG NAMESPACE TASK` (the name of an object).
"""

import asyncio
import logging
import sys
import time
from pathlib import Path
from typing import Any

import kopf

from gateway_core.api.task import GatewayTask
from gateway_core.concurrency import Supervisor
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.kubeconfig import find_connection
from gateway_operator.context import Shards
from gateway_operator.events import KopfPoster
from gateway_operator.handlers import LEASES, configure, login_to

COUNT = 1000
LEASE = "model-gateway-operator-0"


async def main(kubeconfig: Path, namespace: str, name: str) -> None:
    """Post `COUNT` Events about the task, a hundred at once, as a burst of the operator is."""
    connection = find_connection(kubeconfig)
    poster, registry, stop = KopfPoster(), kopf.OperatorRegistry(), asyncio.Event()
    bound = asyncio.Event()

    @kopf.on.startup(registry=registry)
    async def start(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure(settings, Shards(), namespace, LEASE)

    @kopf.on.login(registry=registry)
    async def log_in(**_: Any) -> kopf.AiohttpSession:
        return await login_to(connection, Supervisor())

    @kopf.on.event(*LEASES, registry=registry)
    async def bind(**_: Any) -> None:
        poster.bind()
        bound.set()

    async def measure() -> None:
        async with KubernetesClient(connection, namespace) as kube:
            await bound.wait()
            obj = await kube.get(GatewayTask.plural, name)
            began = time.process_time()
            for number in range(COUNT):
                meta = {**obj["metadata"], "uid": f"{number}-{obj['metadata']['uid']}"}
                poster({**obj, "metadata": meta}, "Normal", "Measured", "job job_1 at provider a")
                if number % 100 == 99:
                    await asyncio.sleep(1)
            # kopf says nothing when all are posted
            while any("event poster" in task.get_name() for task in asyncio.all_tasks()):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            print((time.process_time() - began) / COUNT)
        stop.set()

    # before kopf, which cancels at its end what was begun after it
    measuring = asyncio.create_task(measure())
    operator = kopf.operator(
        registry=registry, namespaces=[namespace], standalone=True, stop_flag=stop
    )
    await asyncio.gather(operator, measuring)


if __name__ == "__main__":
    logging.getLogger("kopf").setLevel(logging.WARNING)
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
