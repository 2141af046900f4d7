"""What accounts, keys and guardrails show of money is what the record says, and rarely written."""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gateway_core.api.account import GatewayAccount
from gateway_core.api.guardrail import GatewayGuardrail
from gateway_core.api.ids import ACCOUNT_LABEL
from gateway_core.api.key import GatewayKey
from gateway_core.api.usage import GatewayUsage
from gateway_core.billing.charges import Charge
from gateway_core.billing.usage import add_charges
from gateway_core.kube.errors import KubernetesUnavailable, WriteConflict
from gateway_operator.accounts.balances import (
    AGAIN_SECONDS,
    CHARGES_SECONDS,
    LOOK_SECONDS,
    SOON_SECONDS,
    Balances,
    read_usage_version,
)
from tests.fakes.clock import in_virtual_time
from tests.fakes.informer import FakeInformer
from tests.fakes.kubernetes import FakeKubernetes, Fault

START = datetime(2026, 11, 21, 12, tzinfo=UTC)
KINDS = (GatewayAccount, GatewayKey, GatewayGuardrail)


class Simulation:
    """An account with a key and a guardrail, and the part of the operator under test."""

    def __init__(self) -> None:
        self.kube = FakeKubernetes()
        self.now = START
        self.charged = 0
        tables: list[Any] = [
            FakeInformer(self.kube, kind.plural, kind.model_validate) for kind in KINDS
        ]
        usage: Any = FakeInformer(self.kube, GatewayUsage.plural, read_usage_version)
        self.balances = Balances(self.kube, usage, *tables, lambda: self.now)
        owner = {"name": "O", "email": "o@example.com"}
        funds = {"paidMicros": 5_000_000, "bonusMicros": 1_000_000}
        self.put(GatewayAccount, "demo", displayName="Demo", owner=owner, funds=funds)
        limit = {"micros": 10_000_000, "window": "1h"}
        self.put(GatewayKey, "key-a", accountName="demo", displayName="A", limit=limit)
        self.put(GatewayKey, "key-b", accountName="demo", displayName="B")
        weekly = {"micros": 10, "window": "weekly"}
        self.put(GatewayGuardrail, "grd-x", accountName="demo", displayName="X", limit=weekly)

    def put(self, kind: Any, name: str, *, generation: int = 1, **spec: Any) -> None:
        old = [o for o in self.kube.list_objects(kind.plural) if o["metadata"]["name"] == name]
        status = {"status": old[0]["status"]} if old and "status" in old[0] else {}
        metadata = {"name": name, "generation": generation}
        self.kube.put(kind.plural, {"metadata": metadata, "spec": spec, **status})

    def charge(self, micros: int, *subjects: str) -> None:
        day = self.now.date().isoformat()
        name = f"demo-{day}"
        objects = self.kube.list_objects(GatewayUsage.plural)
        status = next((o["status"] for o in objects if o["metadata"]["name"] == name), {})
        self.charged += 1
        charge = Charge(
            name=f"task-{self.charged}",
            uid=str(self.charged),
            account="demo",
            day=day,
            minute=self.now.hour * 60 + self.now.minute,
            micros=micros,
            failed=False,
            key_name="key-a",
            model_id="m",
            operation="s/a",
            subjects=subjects,
        )
        self.kube.put(
            GatewayUsage.plural,
            {
                "metadata": {"name": name, "labels": {ACCOUNT_LABEL: "demo"}},
                "spec": {"accountName": "demo", "day": day},
                "status": add_charges(status, day, [charge], self.now),
            },
        )

    def show(self, kind: Any, name: str) -> dict[str, Any]:
        [obj] = [o for o in self.kube.list_objects(kind.plural) if o["metadata"]["name"] == name]
        status: dict[str, Any] = obj.get("status") or {}
        return status

    def count_writes(self) -> int:
        return sum(method == "patch_status" for method, _ in self.kube.calls)

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def sim() -> Simulation:
    return Simulation()


@in_virtual_time
async def test_balance_follows_usage_objects(sim: Simulation) -> None:
    sim.charge(300_000, "key/key-a", "guardrail/grd-x")
    await sim.balances.look()
    assert sim.show(GatewayAccount, "demo") == {
        "balanceMicros": 5_700_000,
        "balance": "5.70",
        "chargedMicros": 300_000,
        "charged": "0.30",
    }
    assert sim.show(GatewayKey, "key-a") == {
        "usedMicros": 300_000,
        "used": "0.30",
        "resetTime": "2026-11-21T13:01:00Z",
    }
    assert sim.show(GatewayGuardrail, "grd-x") == {
        "usedMicros": 300_000,
        "used": "0.30",
        "resetTime": "2026-11-23T00:00:00Z",
    }
    assert sim.show(GatewayKey, "key-b") == {}


@in_virtual_time
async def test_unchanged_status_is_not_written(sim: Simulation) -> None:
    sim.charge(300_000, "key/key-a")
    await sim.balances.look()
    before = sim.count_writes()
    reads = len(sim.kube.calls)
    for _ in range(5):
        await sim.balances.look()
    assert sim.count_writes() == before
    assert len(sim.kube.calls) - reads <= 7, "and hardly anything is read"


@in_virtual_time
async def test_passed_window_is_shown_without_new_charge(sim: Simulation) -> None:
    sim.charge(300_000, "key/key-a")
    await sim.balances.look()
    sim.now += timedelta(minutes=62)
    await sim.balances.look()
    shown = sim.show(GatewayKey, "key-a")
    assert (shown["usedMicros"], shown["used"]) == (0, "0.00")
    assert "resetTime" not in shown


@in_virtual_time
async def test_charge_is_shown_in_seconds_and_busy_account_is_written_rarely(
    sim: Simulation,
) -> None:
    running = asyncio.create_task(sim.balances.run())
    await sim.pass_time(5)
    before = sim.count_writes()
    for number in range(100):
        sim.charge(1000)
        await sim.pass_time(1)
        shown = sim.show(GatewayAccount, "demo")["chargedMicros"]
        assert shown >= 1000 * (number - CHARGES_SECONDS - SOON_SECONDS)
    assert sim.count_writes() - before <= 100 / CHARGES_SECONDS + 100 / LOOK_SECONDS + 1
    owner = {"name": "O", "email": "o@example.com"}
    funds = {"paidMicros": 9_000_000}
    sim.put(GatewayAccount, "demo", generation=2, displayName="Demo", owner=owner, funds=funds)
    await sim.pass_time(3)
    assert sim.show(GatewayAccount, "demo")["balance"] == "8.90"
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


@pytest.mark.parametrize("method", ["patch_status", "list_page"])
@pytest.mark.parametrize(
    "error", [WriteConflict("changed"), KubernetesUnavailable("away"), KeyError("odd")]
)
@in_virtual_time
async def test_new_funds_are_shown_after_failed_attempts(
    sim: Simulation, method: str, error: Exception
) -> None:
    sim.charge(300_000)
    running = asyncio.create_task(sim.balances.run())
    await sim.pass_time(5)
    owner = {"name": "O", "email": "o@example.com"}
    funds = {"paidMicros": 9_000_000}
    sim.kube.order_faults(method, Fault(error), Fault(error))
    sim.put(GatewayAccount, "demo", generation=2, displayName="Demo", owner=owner, funds=funds)
    soon = SOON_SECONDS + 2 * (AGAIN_SECONDS + SOON_SECONDS)
    await sim.pass_time(3 * LOOK_SECONDS if isinstance(error, KeyError) else soon + 1)
    assert sim.show(GatewayAccount, "demo")["balance"] == "8.70"
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


@in_virtual_time
async def test_failing_account_delays_no_other(sim: Simulation) -> None:
    owner = {"name": "O", "email": "o@example.com"}
    names = [f"other-{number}" for number in range(8)]
    for name in names:
        sim.put(GatewayAccount, name, displayName=name, owner=owner)
    sim.charge(300_000)
    before = len(sim.kube.calls)
    sim.kube.order_faults("patch_status", *[Fault(KubernetesUnavailable("away"))] * 4)
    await sim.balances.look()
    shown = [name for name in (*names, "demo") if sim.show(GatewayAccount, name)]
    assert len(shown) == 5
    assert len(sim.kube.calls) > before
    await sim.balances.look()
    assert all(sim.show(GatewayAccount, name) for name in (*names, "demo"))


@in_virtual_time
async def test_account_without_funds_or_charges_has_no_balance_left(sim: Simulation) -> None:
    owner = {"name": "O", "email": "o@example.com"}
    sim.put(GatewayAccount, "empty", displayName="Empty", owner=owner)
    await sim.balances.look()
    assert sim.show(GatewayAccount, "empty")["balance"] == "0.00"
