"""What must be true after a fault, beside the invariants of the history."""

from tests.servers.world import list_tasks, wait_for


async def check_money(world, client):
    """The sums: charged once what completed, nothing held when nothing runs (I7)."""

    async def settled():
        answer = await client.request("GET", "/api/v1/me/balance")
        if answer.status != 200:
            return None
        body = answer.body
        held = body["paid_balance_cents"] + body["bonus_balance_cents"] - body["balance_cents"]
        return body if held == 0 else None

    balance = await wait_for(settled, what="every hold settled")
    charged = sum(
        obj["status"].get("chargedMicros", 0)
        for obj in list_tasks(world).values()
        if obj["spec"]["request"]["accountName"] == client.account
    )
    assert balance["spent_cents_total"] * 10_000 == charged, balance


def is_closed(world, client):
    """Whether nothing is left to do for the client's tasks."""
    objects = list_tasks(world)
    return not any(objects[i]["metadata"].get("finalizers") for i in client.history.accepted)
