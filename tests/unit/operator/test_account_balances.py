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
from gateway_operator.accounts.balances import AGAIN_SECONDS, LOOK_SECONDS, SOON_SECONDS, Balances
from tests.fakes.clock import in_virtual_time
from tests.fakes.informer import FakeInformer
from tests.fakes.kubernetes import FakeKubernetes, Fault

START = datetime(2026, 11, 21, 12, tzinfo=UTC)
KINDS = (GatewayAccount, GatewayKey, GatewayGuardrail)


class Scene:
    """An account with a key and a guardrail, and the part of the operator under test."""

    def __init__(self) -> None:
        self.kube = FakeKubernetes()
        self.now = START
        self.charged = 0
        tables: list[Any] = [
            FakeInformer(self.kube, kind.plural, kind.model_validate) for kind in KINDS
        ]
        self.balances = Balances(self.kube, *tables, lambda: self.now)
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
def scene() -> Scene:
    return Scene()


def test_the_record_is_shown(scene: Scene) -> None:
    @in_virtual_time
    async def play() -> None:
        scene.charge(300_000, "key/key-a", "guardrail/grd-x")
        await scene.balances.look()
        assert scene.show(GatewayAccount, "demo") == {
            "balanceMicros": 5_700_000,
            "balance": "5.70",
            "chargedMicros": 300_000,
            "charged": "0.30",
        }
        assert scene.show(GatewayKey, "key-a") == {
            "usedMicros": 300_000,
            "used": "0.30",
            "resetTime": "2026-11-21T13:01:00Z",
        }
        assert scene.show(GatewayGuardrail, "grd-x") == {
            "usedMicros": 300_000,
            "used": "0.30",
            "resetTime": "2026-11-23T00:00:00Z",
        }
        assert scene.show(GatewayKey, "key-b") == {}

    play()


def test_what_shows_it_already_is_not_written(scene: Scene) -> None:
    @in_virtual_time
    async def play() -> None:
        scene.charge(300_000, "key/key-a")
        await scene.balances.look()
        before = scene.count_writes()
        reads = len(scene.kube.calls)
        for _ in range(5):
            await scene.balances.look()
        assert scene.count_writes() == before
        assert len(scene.kube.calls) - reads <= 7, "and hardly anything is read"

    play()


def test_a_window_that_has_passed_is_shown_without_any_new_charge(scene: Scene) -> None:
    @in_virtual_time
    async def play() -> None:
        scene.charge(300_000, "key/key-a")
        await scene.balances.look()
        scene.now += timedelta(minutes=62)
        await scene.balances.look()
        shown = scene.show(GatewayKey, "key-a")
        assert (shown["usedMicros"], shown["used"]) == (0, "0.00")
        assert "resetTime" not in shown

    play()


def test_a_busy_account_is_written_once_a_minute_and_funds_are_shown_soon(scene: Scene) -> None:
    @in_virtual_time
    async def play() -> None:
        running = asyncio.create_task(scene.balances.run())
        await scene.pass_time(5)
        before = scene.count_writes()
        for _ in range(300):
            scene.charge(1000)
            await scene.pass_time(1)
        looks = 300 / LOOK_SECONDS
        assert looks - 1 <= scene.count_writes() - before <= looks + 1
        owner = {"name": "O", "email": "o@example.com"}
        funds = {"paidMicros": 9_000_000}
        scene.put(
            GatewayAccount, "demo", generation=2, displayName="Demo", owner=owner, funds=funds
        )
        await scene.pass_time(3)
        assert scene.show(GatewayAccount, "demo")["balance"] == "8.70"
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    play()


def test_a_write_that_comes_too_late_is_made_up_for(scene: Scene) -> None:
    @in_virtual_time
    async def play() -> None:
        scene.charge(300_000, "key/key-a")
        scene.kube.order_faults("patch_status", Fault(WriteConflict("changed")))
        await scene.balances.look()
        await scene.balances.look()
        assert scene.show(GatewayAccount, "demo")["chargedMicros"] == 300_000

    play()


@pytest.mark.parametrize("method", ["patch_status", "list_page"])
@pytest.mark.parametrize(
    "error", [WriteConflict("changed"), KubernetesUnavailable("away"), KeyError("odd")]
)
def test_funds_are_shown_though_the_first_attempts_fail(
    scene: Scene, method: str, error: Exception
) -> None:
    @in_virtual_time
    async def play() -> None:
        scene.charge(300_000)
        running = asyncio.create_task(scene.balances.run())
        await scene.pass_time(5)
        owner = {"name": "O", "email": "o@example.com"}
        funds = {"paidMicros": 9_000_000}
        scene.kube.order_faults(method, Fault(error), Fault(error))
        scene.put(
            GatewayAccount, "demo", generation=2, displayName="Demo", owner=owner, funds=funds
        )
        soon = SOON_SECONDS + 2 * (AGAIN_SECONDS + SOON_SECONDS)
        await scene.pass_time(3 * LOOK_SECONDS if isinstance(error, KeyError) else soon + 1)
        assert scene.show(GatewayAccount, "demo")["balance"] == "8.70"
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    play()


def test_one_account_that_fails_holds_up_no_other(scene: Scene) -> None:
    @in_virtual_time
    async def play() -> None:
        owner = {"name": "O", "email": "o@example.com"}
        names = [f"other-{number}" for number in range(8)]
        for name in names:
            scene.put(GatewayAccount, name, displayName=name, owner=owner)
        scene.charge(300_000)
        before = len(scene.kube.calls)
        scene.kube.order_faults("patch_status", *[Fault(KubernetesUnavailable("away"))] * 4)
        await scene.balances.look()
        shown = [name for name in (*names, "demo") if scene.show(GatewayAccount, name)]
        assert len(shown) == 5
        assert len(scene.kube.calls) > before
        await scene.balances.look()
        assert all(scene.show(GatewayAccount, name) for name in (*names, "demo"))

    play()


def test_an_account_that_never_paid_or_spent_shows_nothing_left(scene: Scene) -> None:
    @in_virtual_time
    async def play() -> None:
        owner = {"name": "O", "email": "o@example.com"}
        scene.put(GatewayAccount, "empty", displayName="Empty", owner=owner)
        await scene.balances.look()
        assert scene.show(GatewayAccount, "empty")["balance"] == "0.00"

    play()
