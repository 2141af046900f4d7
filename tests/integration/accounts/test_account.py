"""The balance, whose figures move with the tasks (contract §2.4)."""

import pytest

from tests.servers.tenants import read_balance
from tests.servers.world import wait_for

UNSEEN = {
    "behaviour": "status",
    "status": 503,
    "match": {"on": "poll", "prompt_contains": "Unseen"},
}
"""The end of such a job is not heard of until the rule is gone: `await simulate()`."""


async def wait_balance(client, **figures):
    """Waits until the balance has these figures, and returns it."""

    async def is_there():
        balance = await read_balance(client)
        return balance if figures.items() <= balance.items() else None

    return await wait_for(is_there, what=f"{figures}")


@pytest.mark.usefixtures("one_day")
async def test_reservation_while_processing_and_charge_after(client, simulate):
    await simulate(UNSEEN)
    assert await read_balance(client) == {
        "balance_cents": 10_000,
        "paid_balance_cents": 10_000,
        "bonus_balance_cents": 0,
        "spent_cents_today": 0,
        "spent_cents_total": 0,
    }
    task = (await client.create(prompt="Unseen", duration_seconds=3)).body["id"]
    held = await read_balance(client)
    assert (held["balance_cents"], held["paid_balance_cents"]) == (9_982, 10_000)
    assert (held["spent_cents_today"], held["spent_cents_total"]) == (0, 0)
    await simulate()
    ended = (await client.wait_terminal([task]))[task]
    assert ended["usage"]["cost"] == 0.18
    after = await wait_balance(client, spent_cents_total=18)
    assert after == {
        "balance_cents": 9_982,
        "paid_balance_cents": 9_982,
        "bonus_balance_cents": 0,
        "spent_cents_today": 18,
        "spent_cents_total": 18,
    }
