"""`/api/v1/me` and the balance, whose figures move with the tasks (contract §2.4)."""

import pytest

from tests.integration.rules import UNSEEN
from tests.servers.tenants import (
    make_key,
    read_balance,
    wait_known,
    wait_status,
)
from tests.servers.world import wait_for


async def wait_balance(client, **figures):
    """Waits until the balance has these figures, and returns it."""

    async def is_there():
        balance = await read_balance(client)
        return balance if figures.items() <= balance.items() else None

    return await wait_for(is_there, what=f"{figures}")


async def test_me_tells_the_person_and_the_account(world, client):
    answer = await client.request("GET", "/api/v1/me")
    assert answer.status == 200
    me = answer.body
    assert {key: type(value) for key, value in me.items()} == {
        "id": int,
        "name": str,
        "email": str,
        "account": dict,
    }
    assert (me["name"], me["email"]) == ("Olga Owner", "olga@example.com")
    assert {key: type(value) for key, value in me["account"].items()} == {"id": int, "name": str}
    assert me["account"]["name"] == f"Account {client.account}"
    # integers that every JSON reader holds exactly
    assert 0 < me["id"] < 2**53
    assert 0 < me["account"]["id"] < 2**53
    assert answer.headers["Cache-Control"] == "no-store"
    second = make_key(world, client.account).plaintext
    await wait_known(client, second)
    assert (await client.request("GET", "/api/v1/me", key=second)).body == me


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


async def test_failed_task_costs_nothing(client, simulate):
    fail = {"behaviour": "fail", "match": {"prompt_contains": "to fail"}}
    await simulate(UNSEEN, fail)
    task = (await client.create(prompt="Unseen, to fail")).body["id"]
    assert (await read_balance(client))["balance_cents"] == 9_970
    # that it fails is decided at its submission, which may be still to come
    await simulate(fail)
    assert (await client.wait_terminal([task]))[task]["status"] == "failed"
    after = await wait_balance(client, balance_cents=10_000)
    assert after["spent_cents_total"] == 0


async def test_balance_may_be_negative(world, client, simulate):
    await simulate(UNSEEN)
    task = (await client.create(prompt="Unseen", duration_seconds=3)).body["id"]
    world.patch("gatewayaccount", client.account, {"funds": {"paidMicros": 0}})
    await wait_balance(client, balance_cents=-18, paid_balance_cents=0)
    await simulate()
    await client.wait_terminal([task])
    await wait_balance(client, balance_cents=-18, paid_balance_cents=-18, spent_cents_total=18)


async def test_unlimited_account_spends_below_nothing(world, client):
    world.patch("gatewayaccount", client.account, {"unlimited": True, "funds": {"paidMicros": 0}})
    answer = await wait_status(
        client, 202, client.tasks_path, method="POST", body=client.body(duration_seconds=3)
    )
    await client.wait_terminal([answer.body["id"]])
    await wait_balance(client, spent_cents_total=18, balance_cents=-18)
