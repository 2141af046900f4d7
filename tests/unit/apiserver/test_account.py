"""`/api/v1/me` and balance (contract §2.4), and the process's own routes."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from gateway_core.accounts.records import project_account, work_out_balance
from gateway_core.billing.counters import Spending
from tests.unit.apiserver.gateway import COMPLETED, Gateway, call

BALANCE = "/api/v1/me/balance"


async def test_me_shows_person_and_account(gateway: Gateway) -> None:
    answer = await gateway.get("/api/v1/me")
    assert answer.status == 200
    me = answer.json
    assert set(me) == {"id", "name", "email", "account"}
    assert set(me["account"]) == {"id", "name"}
    assert (me["name"], me["email"]) == ("Dana", "dana@example.com")
    assert me["account"]["name"] == "demo account"
    for number in (me["id"], me["account"]["id"]):
        assert isinstance(number, int)
        assert 0 <= number < 2**53
    assert answer.headers["cache-control"] == "no-store"
    other = (await gateway.get("/api/v1/me", key=gateway.other_key)).json
    assert other["account"]["id"] != me["account"]["id"]


async def test_me_shows_who_made_the_key(gateway: Gateway) -> None:
    gateway.put_user("olga", {"demo": "owner"})
    gateway.put_user("mia", {"demo": "viewer"})
    me = (await gateway.get("/api/v1/me", key=gateway.put_key("demo", createdBy="mia"))).json
    assert (me["name"], me["email"]) == ("Mia", "mia@example.com")
    assert 0 < me["id"] < 2**53


async def test_me_of_a_declared_key_shows_the_oldest_owner(gateway: Gateway) -> None:
    declared = (await gateway.get("/api/v1/me")).json
    assert declared["name"] == "Dana"
    gateway.put_user("adam", {"demo": "admin"})
    gateway.kube.clock = lambda: "2026-11-21T11:00:00Z"
    gateway.put_user("zoe", {"guest": "member", "demo": "owner"})
    gateway.kube.clock = lambda: "2026-11-21T12:00:00Z"
    gateway.put_user("amy", {"demo": "owner"})
    zoe = (await gateway.get("/api/v1/me")).json
    assert zoe["name"] == "Zoe"
    assert zoe["account"] == declared["account"]
    gateway.put_user("zoe", {"demo": "member"})
    amy = (await gateway.get("/api/v1/me")).json
    assert amy["name"] == "Amy"
    assert len({declared["id"], zoe["id"], amy["id"]}) == 3
    gateway.kube.remove("gatewayusers", "amy")
    assert (await gateway.get("/api/v1/me")).json == declared


async def test_balance_before_and_after_a_task(gateway: Gateway) -> None:
    gateway.put_account("demo", funds={"paidMicros": 10_000_000, "bonusMicros": 200_000})
    task_id = (await gateway.create()).json["id"]
    assert (await gateway.get(BALANCE)).json == {
        "balance_cents": 970,
        "paid_balance_cents": 1000,
        "bonus_balance_cents": 20,
        "spent_cents_today": 0,
        "spent_cents_total": 0,
    }
    gateway.end_task(task_id, COMPLETED)
    gateway.counters.lose()
    answer = (await gateway.get(BALANCE)).json
    assert answer["balance_cents"] == 970
    assert answer["paid_balance_cents"] == 970
    assert answer["bonus_balance_cents"] == 0
    assert answer["spent_cents_total"] == 50


async def test_balance_counts_today_only(gateway: Gateway) -> None:
    today = datetime.now(UTC).date().isoformat()
    for day, charged in ((today, 30_000), ("2020-01-01", 50_000)):
        task_id = (await gateway.create()).json["id"]
        status = {**COMPLETED, "completionTime": f"{day}T00:00:00Z", "chargedMicros": charged}
        gateway.end_task(task_id, status)
    gateway.counters.lose()
    answer = (await gateway.get(BALANCE)).json
    assert (answer["spent_cents_today"], answer["spent_cents_total"]) == (3, 8)


@pytest.mark.parametrize(
    ("paid", "bonus", "charged", "held", "figures"),
    [
        (1_000_000, 0, 0, 1, (99, 100, 0)),
        (19_999, 0, 0, 0, (1, 1, 0)),
        (15_000, 15_000, 0, 0, (3, 1, 1)),
        (1_000_000, 500_000, 300_000, 0, (120, 100, 20)),
        (1_000_000, 500_000, 700_000, 0, (80, 80, 0)),
        (0, 0, 10_001, 0, (-2, -2, 0)),
    ],
)
def test_balance_is_rounded_down_and_bonus_spent_first(
    paid: int, bonus: int, charged: int, held: int, figures: tuple[int, int, int]
) -> None:
    account = project_account(
        {
            "metadata": {"name": "a", "uid": "u"},
            "spec": {"displayName": "A", "owner": {"name": "O", "email": "o@e.com"}},
        }
    )
    account = replace(account, paid_micros=paid, bonus_micros=bonus)
    balance = work_out_balance(account, Spending(charged, held, 0))
    shown = (balance.balance_cents, balance.paid_balance_cents, balance.bonus_balance_cents)
    assert shown == figures


async def test_balance_without_counters_is_503(gateway: Gateway) -> None:
    gateway.counters.away = True
    answer = await gateway.get(BALANCE)
    assert answer.status == 503
    assert answer.headers["retry-after"] == "5"
    assert (await gateway.get("/api/v1/me")).status == 200


async def test_process_is_ready_once_every_table_is(gateway: Gateway) -> None:
    assert (await call(gateway.app, "GET", "/readyz")).status == 200
    for table in (gateway.keys, gateway.accounts, gateway.users, gateway.models, gateway.tasks):
        table.synced = False
        assert (await call(gateway.app, "GET", "/readyz")).status == 503
        assert (await call(gateway.app, "GET", "/healthz")).status == 200
        table.synced = True


async def test_metrics_can_be_switched_off() -> None:
    assert (await call(Gateway(metrics_enabled=False).health, "GET", "/metrics")).status == 404
