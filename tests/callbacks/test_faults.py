"""F7: receivers that misbehave, each fault on many tasks at once; I4 holds for every task."""

import asyncio
import json

import pytest

from tests.callbacks.conftest import SCHEDULE
from tests.servers.receivers import answer, check_one_event, cut, hang
from tests.servers.tenants import open_tenant, unique
from tests.servers.world import list_tasks, wait_for
from tests.shares import share

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

TRIALS = 200
METADATA = "http://169.254.169.254/latest/meta-data/iam/security-credentials/"
WEBHOOK = {"name": "demo-webhook", "key": "secret"}


def plan_500(receiver, path):
    return receiver.plan(path, answer(500), answer(502))


def plan_hang(receiver, path):
    return receiver.plan(path, hang)


def plan_redirect(receiver, path):
    return receiver.always(path, answer(307, Location=METADATA))


def plan_410(receiver, path):
    return receiver.always(path, answer(410))


def plan_flood(receiver, path):
    return receiver.plan(path, receiver.flood)


def plan_tls(receiver, path):
    return receiver.locate(path).replace("http:", "https:")


def plan_cut(receiver, path):
    return receiver.plan(path, cut, answer(500), cut)


FAULTS = {
    "500s": (plan_500, "Delivered", 3),
    "hang": (plan_hang, "Delivered", 2),
    "redirect to the metadata": (plan_redirect, "Undelivered", len(SCHEDULE)),
    "410": (plan_410, "Undelivered", 1),
    "body of a gigabyte": (plan_flood, "Delivered", 2),
    "no TLS behind https": (plan_tls, "Undelivered", len(SCHEDULE)),
    "cut off": (plan_cut, "Delivered", 4),
}
"""How a receiver is set up, what it comes to, and after how many attempts."""


@pytest.mark.parametrize("fault", FAULTS)
async def test_every_callback_is_delivered_or_its_schedule_is_over(world, receiver, tally, fault):
    plan, expected, attempts = FAULTS[fault]
    told, count = tally("F7", fault), share(TRIALS)
    async with open_tenant(
        world, unlimited=True, requestsPerMinute=1_000_000, webhookSecretRef=WEBHOOK
    ) as client:

        async def create(number):
            url = plan(receiver, f"{number}")
            # every address of the loopback is this receiver: a host of its own for each task
            url = url.replace("127.0.0.1", f"127.7.{number // 250}.{number % 250 + 1}")
            return await client.create_surely(unique("cb"), callback_url=url, duration_seconds=3)

        tasks = await asyncio.gather(*(create(number) for number in range(count)))
        bodies = await client.wait_terminal(tasks, seconds=120)

        async def all_settled():
            found = await asyncio.to_thread(list_tasks, world)
            mine = {task: found[task]["status"] for task in tasks}
            return mine if all("work" in status for status in mine.values()) else None

        ended = await wait_for(all_settled, seconds=240, what="every callback settled")
        arrived = {task: [] for task in tasks}
        for arrival in receiver.arrivals:
            arrived[arrival.json["id"]].append(arrival)
        for task in tasks:
            async with told.trial(client):
                callback = ended[task]["callback"]
                assert callback["state"] == expected, f"I4: {task}: {callback}"
                assert callback["attempts"] == attempts, f"I4: {task}: {callback}"
                if fault == "no TLS behind https":
                    assert not arrived[task]
                    continue
                assert len(arrived[task]) == attempts, f"I4: {task}: {len(arrived[task])}"
                check_one_event(arrived[task], task, bodies[task])
    told.note("MB read of floods", receiver.written / 2**20)
    assert receiver.written < count * 16 * 2**20
    told.check()
    assert json.dumps(ended).count(METADATA) == 0, "nothing that a receiver wrote is kept"
