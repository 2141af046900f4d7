"""100 receivers of one account, 10 of them dead, slow or hostile: 90 feel nothing of it."""

import asyncio
import random
import time
from datetime import datetime

from tests.bench.report import Report
from tests.bench.stage import ACCOUNT
from tests.servers.receivers import Receiver, answer, cut, hang, trickle
from tests.servers.world import World, list_tasks

RECEIVERS = 100
BAD = 10
TASKS = 1000
DURATION = "2-20"
BAR_SECONDS = 2.0


async def measure_callbacks(world: World, key: str, report: Report) -> None:
    """From the terminal state to the arrival, at each well receiver; bad ones get as many tasks."""
    webhook = {"webhookSecretRef": {"name": "demo-webhook", "key": "secret"}}
    world.patch("gatewayaccount", ACCOUNT, webhook)
    async with world.client(key) as client, Receiver(host="0.0.0.0") as receiver:
        await client.simulate({"behaviour": "seconds", "seconds": DURATION})
        bad = (hang, trickle, cut, receiver.flood, answer(500))
        urls: list[str] = []
        for number in range(RECEIVERS):
            host = f"127.100.0.{number + 1}"
            urls.append(receiver.url(f"well-{number}", host=host))
            if number < BAD:
                receiver.always(f"bad-{number}", bad[number % len(bad)])
                urls[-1] = receiver.url(f"bad-{number}", host=host)
                if number == 0:  # and one where nobody listens
                    urls[-1] = "http://127.100.0.1:9/"
        told = [urls[number % RECEIVERS] for number in range(TASKS)]
        random.Random(7).shuffle(told)
        gate = asyncio.Semaphore(16)

        async def create(url: str) -> str:
            async with gate:
                answered = await client.create(callback_url=url, duration_seconds=3)
                assert answered.status == 202, answered.raw
                return str(answered.body["id"])

        tasks = await asyncio.gather(*(create(url) for url in told))
        well = {task for task, url in zip(tasks, told, strict=True) if "/well-" in url}
        arrived = dict[str, float]()
        seen, deadline = 0, time.time() + 180
        while len(arrived) < len(well) and time.time() < deadline:
            await asyncio.sleep(0.2)
            for arrival in receiver.arrivals[seen:]:
                seen += 1
                if arrival.json["id"] in well:
                    arrived.setdefault(arrival.json["id"], arrival.at)
        objects = await asyncio.to_thread(list_tasks, world)
    # the record has the end in whole seconds, rounded down: what is shown is up to one too long
    waits = sorted(arrived[task] - _end_of(objects[task]) for task in arrived)
    report.add(
        "callbacks: delivered to the 90 well receivers", len(waits), "tasks", at_least=len(well)
    )
    report.add("callbacks: terminal state to delivery p50", waits[len(waits) // 2], "s")
    report.add(
        "callbacks: terminal state to delivery p99",
        waits[int(len(waits) * 0.99)],
        "s",
        at_most=BAR_SECONDS,
    )


def _end_of(obj) -> float:
    finished = next(c for c in obj["status"]["conditions"] if c["type"] == "Finished")
    return datetime.fromisoformat(finished["lastTransitionTime"]).timestamp()
