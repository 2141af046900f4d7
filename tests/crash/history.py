"""What must be true after a fault, beside the invariants of the history."""

import collections
from contextlib import asynccontextmanager

from gateway_core.api.limits import list_subjects
from gateway_core.billing.counters import Budget
from gateway_core.billing.redis_counters import Counters
from tests.servers.world import list_tasks, wait_for

SWEEPER_SECONDS = 200
"""A hold may be 120 s old before the sweeper looks at it, which it does each minute."""
RETRY_SECONDS = 60
"""The longest pause before what failed is done again is 36 s."""


async def check_money(world, client, told=None, *, killed=False):
    """The sums: charged once what completed, nothing held when nothing runs (I7).

    Those of the account, as a client is told them, and those of each key and guardrail. `killed`
    says that the test killed a process, see `wait_settled`; `told` is its tally.
    """
    balance = await wait_settled(world, client, told, killed=killed)
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


async def wait_charged(client, *bodies):
    """The balance once it shows the charges of tasks, by their last responses (I12)."""
    cents = round(sum(100 * body["usage"]["cost"] for body in bodies))

    async def is_charged():
        answer = await client.request("GET", "/api/v1/me/balance")
        is_known = answer.status == 200 and answer.body["spent_cents_total"] == cents
        return answer.body if is_known else None

    return await wait_for(is_charged, what=f"{cents} cents charged")


async def wait_settled(world, client, told=None, *, killed=False):
    """The balance once nothing is held: soon, but for settlements that the operator repeats.

    Where a process was killed a hold may also be left to the sweeper: that of a task whose
    settlement or release got no answer, as the log of the API or the operator says. Each is counted
    in the tally. Without a kill it is a violation.
    """

    async def settled():
        answer = await client.request("GET", "/api/v1/me/balance")
        if answer.status != 200:
            return None
        body = answer.body
        held = body["paid_balance_cents"] + body["bonus_balance_cents"] - body["balance_cents"]
        return body if held == 0 else None

    try:
        return await wait_for(settled, what="every hold settled")
    except AssertionError as error:
        async with open_counters(world) as counters:
            holds = await counters.list_holds(client.account, 0)
        swept = find_lines(world, "operator", ["hold not settled"])
        swept += find_lines(world, "api", ["a hold was not released"])
        retried = find_lines(world, "operator", ["work failed"])
        if killed and holds and are_named(holds, swept):
            if told is not None:
                told.swept += len(holds)
            return await wait_for(settled, seconds=SWEEPER_SECONDS, what="every hold swept")
        if holds and are_named(holds, retried + (swept if killed else [])):
            return await wait_for(settled, seconds=RETRY_SECONDS, what="every closing done again")
        error.add_note(await describe_holds(world, client, holds))
        raise


def are_named(holds, lines):
    """Whether there is a line for each hold's task."""
    return all(any(hold.task in line for line in lines) for hold in holds)


async def describe_holds(world, client, holds):
    """Holds that stand, each with its task's phase, and what the processes say of them."""
    objects = {obj["metadata"]["name"]: obj for obj in list_tasks(world).values()}
    told = [f"{(await client.request('GET', '/api/v1/me/balance')).raw!r}"]
    for hold in holds:
        status = objects.get(hold.task, {}).get("status", {})
        shown = {name: status.get(name) for name in ("phase", "work", "completionTime")}
        told.append(f"{hold.task}: {hold.micros} for {hold.age:.0f} s, {shown}")
    words = (
        "not settled",
        "work failed",
        "not released",
        "sweep",
        "counters",
        *(hold.task for hold in holds),
    )
    for process in ("api", "operator"):
        told.extend(f"{process}: {line[:400]}" for line in find_lines(world, process, words)[-30:])
    return "\n".join(told)


def find_lines(world, process, words):
    """Lines of the logs of a process, and of the replicas of its name, that have any of `words`."""
    logs = sorted(world.config.log_directory.glob(f"{process}*.log"))
    lines = (line for log in logs for line in log.read_text(errors="replace").splitlines())
    return [line for line in lines if any(word in line for word in words)]


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
    counters = Counters(world.redis, namespace=world.config.namespace)
    try:
        yield counters
    finally:
        await counters.close()


def is_closed(world, client):
    """Whether nothing is left to do for the client's tasks."""
    objects = list_tasks(world)
    return not any(objects[i]["metadata"].get("finalizers") for i in client.history.accepted)
