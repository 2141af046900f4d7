"""What must be true after a fault, beside the invariants of the history."""

import collections
from contextlib import asynccontextmanager

from gateway_core.adapters.redis.counters import RedisCounters
from gateway_core.contract.limits import list_subjects
from gateway_core.ports.counters import Budget
from tests.servers.world import list_tasks, wait_for


async def check_money(world, client):
    """The sums: charged once what completed, nothing held when nothing runs (I7).

    Those of the account, as a client is told them, and those of each key and guardrail.
    """

    async def settled():
        answer = await client.request("GET", "/api/v1/me/balance")
        if answer.status != 200:
            return None
        body = answer.body
        held = body["paid_balance_cents"] + body["bonus_balance_cents"] - body["balance_cents"]
        return body if held == 0 else None

    balance = await wait_for(settled, what="every hold settled")
    tasks = [
        obj
        for obj in list_tasks(world).values()
        if obj["spec"]["request"]["accountName"] == client.account
    ]
    charged = sum(obj["status"].get("chargedMicros", 0) for obj in tasks)
    assert balance["spent_cents_total"] * 10_000 == charged, balance
    spent = sum_subjects(tasks)
    async with open_counters(world) as counters:
        assert await counters.list_holds(client.account, 0) == [], "a hold outlives its task"
        states = await counters.read_budgets(client.account, [Budget(name) for name in spent])
    told = {state.budget.subject: (state.used, state.held) for state in states}
    assert told == {name: (micros, 0) for name, micros in spent.items()}


def sum_subjects(tasks):
    """What the objects say that each key and guardrail was charged."""
    spent = collections.Counter()
    for obj in tasks:
        for subject in list_subjects(obj["spec"]["request"]):
            spent[subject] += obj["status"].get("chargedMicros", 0)
    return spent


@asynccontextmanager
async def open_counters(world):
    """The counters of the world's Redis."""
    counters = RedisCounters(
        f"redis://127.0.0.1:{world.config.ports.redis}/0", namespace=world.config.namespace
    )
    try:
        yield counters
    finally:
        await counters.close()


def is_closed(world, client):
    """Whether nothing is left to do for the client's tasks."""
    objects = list_tasks(world)
    return not any(objects[i]["metadata"].get("finalizers") for i in client.history.accepted)
