"""`Ready` of the standing kinds: it says what the other parts decide by, and what to mend."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gateway_core.contract.account import GatewayAccount
from gateway_core.contract.conditions import Reason
from gateway_core.contract.key import GatewayKey
from gateway_core.contract.model import GatewayModel
from gateway_core.contract.provider import GatewayProvider
from gateway_core.domain.catalog import Problem
from gateway_core.ports.records import Outdated, RecordUnavailable, Refused
from gateway_operator.controllers.standing import RECHECK_SECONDS, StandingController
from gateway_operator.providers import Providers
from tests.fakes.clock import in_virtual_time
from tests.fakes.records import FakeRecords, Fault
from tests.fakes.tables import FakeTable
from tests.fakes.upstream import FakeUpstream

NOW = datetime(2026, 11, 21, 10, tzinfo=UTC)


class Scene:
    """The controller on fakes, with one good object of each kind."""

    def __init__(self) -> None:
        self.records = FakeRecords()
        self.now = NOW
        self.problem: Problem | None = None
        tables = {
            kind.plural: FakeTable(self.records, kind.plural, kind.model_validate)
            for kind in (GatewayAccount, GatewayKey, GatewayModel, GatewayProvider)
        }
        provider_table: Any = tables["gatewayproviders"]
        self.providers = Providers(
            provider_table, self.records, lambda *_: FakeUpstream(), lambda _: self.problem
        )
        self.controller = StandingController(
            self.records,
            self.providers,
            account_table=tables["gatewayaccounts"],  # type: ignore[arg-type]
            key_table=tables["gatewaykeys"],  # type: ignore[arg-type]
            model_table=tables["gatewaymodels"],  # type: ignore[arg-type]
            provider_table=provider_table,
            now=lambda: self.now,
        )
        self.put_account()
        self.put_key()
        self.put_provider()
        self.put_model()

    def put(self, plural: str, name: str, spec: dict[str, Any]) -> None:
        old = next(
            (o for o in self.records.list_objects(plural) if o["metadata"]["name"] == name), {}
        )
        generation = old.get("metadata", {}).get("generation", 0) + 1
        metadata = {"name": name, "generation": generation}
        obj = {"metadata": metadata, "spec": spec, "status": old.get("status", {})}
        self.records.put(plural, obj)

    def put_account(self, name: str = "demo", **spec: Any) -> None:
        base = {"displayName": name, "owner": {"name": "D", "email": "d@example.com"}}
        self.put("gatewayaccounts", name, {**base, **spec})

    def put_key(self, name: str = "key", **spec: Any) -> None:
        token = {"id": "abcdefgh", "digest": "0" * 64, "hint": "h"}
        base = {"accountName": "demo", "displayName": name, "tokens": [token]}
        self.put("gatewaykeys", name, {**base, **spec})

    def put_provider(self, name: str = "simulated", **spec: Any) -> None:
        self.put("gatewayproviders", name, {"type": "fake", **spec})

    def put_model(self, name: str = "model", **spec: Any) -> None:
        base = {
            "modelId": name,
            "service": "sim",
            "action": "reference_to_video",
            "routes": [{"name": "main", "providerName": "simulated", "upstreamModel": "q4"}],
            "prices": [{"perCallMicros": 1}],
        }
        self.put("gatewaymodels", name, {**base, **spec})

    def ready(self, plural: str, name: str) -> dict[str, Any]:
        obj = next(o for o in self.records.list_objects(plural) if o["metadata"]["name"] == name)
        conditions = (obj.get("status") or {}).get("conditions") or []
        return next((c for c in conditions if c["type"] == "Ready"), {})

    async def shown(self, plural: str, name: str) -> tuple[str, str, str]:
        """What Ready says after a look at everything."""
        await self.controller.check_all()
        ready = self.ready(plural, name)
        return ready["status"], ready["reason"], ready["message"]

    @property
    def writes(self) -> int:
        return sum(method == "patch_status" for method, _ in self.records.calls)


ALL = [
    ("gatewayaccounts", "demo"),
    ("gatewaykeys", "key"),
    ("gatewayproviders", "simulated"),
    ("gatewaymodels", "model"),
]


@in_virtual_time
async def test_what_is_good_is_ready() -> None:
    scene = Scene()
    for plural, name in ALL:
        assert await scene.shown(plural, name) == ("True", "Available", "in use")


@in_virtual_time
async def test_nothing_is_written_twice() -> None:
    scene = Scene()
    for _ in range(5):
        await scene.controller.check_all()
    assert scene.writes == 4


@in_virtual_time
async def test_a_new_generation_is_observed() -> None:
    scene = Scene()
    await scene.controller.check_all()
    scene.put_account(displayName="renamed")
    await scene.controller.check_all()
    ready = scene.ready("gatewayaccounts", "demo")
    assert ready["observedGeneration"] == 2
    assert ready["lastTransitionTime"] == "2026-11-21T10:00:00Z"


class TestKeys:
    @pytest.mark.parametrize(
        ("spec", "reason"),
        [
            ({"revoked": True}, Reason.REVOKED),
            ({"disabled": True}, Reason.DISABLED),
            ({"expirationTime": "2026-11-21T10:00:00Z"}, Reason.EXPIRED),
            ({"expirationTime": "2026-11-21T11:00:00+02:00"}, Reason.EXPIRED),
            ({"accountName": "nobody"}, Reason.ACCOUNT_NOT_FOUND),
        ],
    )
    def test_one_that_opens_nothing(self, spec: dict[str, Any], reason: Reason) -> None:
        @in_virtual_time
        async def run() -> None:
            scene = Scene()
            scene.put_key(**spec)
            status, shown, _ = await scene.shown("gatewaykeys", "key")
            assert (status, shown) == ("False", reason.value)

        run()

    @in_virtual_time
    async def test_one_that_runs_out_while_nothing_changes(self) -> None:
        scene = Scene()
        scene.put_key(expirationTime="2026-11-21T10:01:00Z")
        running = asyncio.create_task(scene.controller.run())
        await asyncio.sleep(1)
        assert scene.ready("gatewaykeys", "key")["status"] == "True"
        scene.now = NOW + timedelta(minutes=2)
        await asyncio.sleep(RECHECK_SECONDS + 1)
        assert scene.ready("gatewaykeys", "key")["reason"] == "Expired"
        running.cancel()

    @in_virtual_time
    async def test_one_of_a_suspended_account(self) -> None:
        scene = Scene()
        scene.put_account(suspended=True)
        assert (await scene.shown("gatewayaccounts", "demo"))[1] == "Suspended"
        assert (await scene.shown("gatewaykeys", "key"))[1] == "Suspended"


class TestModels:
    @pytest.mark.parametrize(
        ("spec", "reason"),
        [
            ({"disabled": True}, Reason.DISABLED),
            ({"action": "text_to_video"}, Reason.UNKNOWN_ACTION),
            ({"prices": None}, Reason.PRICE_MISSING),
            ({"fields": [{"name": "colour"}]}, Reason.INVALID_FIELD),
        ],
    )
    def test_one_that_cannot_be_called(self, spec: dict[str, Any], reason: Reason) -> None:
        @in_virtual_time
        async def run() -> None:
            scene = Scene()
            scene.put_model(**spec)
            assert (await scene.shown("gatewaymodels", "model"))[:2] == ("False", reason.value)

        run()

    @in_virtual_time
    async def test_one_without_its_provider(self) -> None:
        scene = Scene()
        scene.records.remove("gatewayproviders", "simulated")
        status, reason, message = await scene.shown("gatewaymodels", "model")
        assert (status, reason) == ("False", "ProviderNotFound")
        assert "simulated" in message

    @in_virtual_time
    async def test_one_whose_provider_is_not_ready(self) -> None:
        scene = Scene()
        scene.problem = Problem(Reason.INVALID_EXPRESSION, "http.poll.state: bad")
        assert (await scene.shown("gatewayproviders", "simulated"))[1] == "InvalidExpression"
        status, reason, message = await scene.shown("gatewaymodels", "model")
        assert (status, reason) == ("False", "ProviderNotReady")
        assert message == "provider simulated is not ready: http.poll.state: bad"

    @in_virtual_time
    async def test_one_good_route_is_enough(self) -> None:
        scene = Scene()
        scene.put_model(
            routes=[
                {"name": "a", "providerName": "nobody", "upstreamModel": "q4"},
                {"name": "b", "providerName": "simulated", "upstreamModel": "q4"},
            ]
        )
        assert (await scene.shown("gatewaymodels", "model"))[0] == "True"

    @in_virtual_time
    async def test_of_two_for_one_id_one_is_told(self) -> None:
        scene = Scene()
        scene.put_model("other", modelId="model")
        assert (await scene.shown("gatewaymodels", "model"))[0] == "True"
        assert (await scene.shown("gatewaymodels", "other"))[1] == "DuplicateModel"


class TestOddities:
    """One object that cannot be shown stops neither the others nor the operator."""

    @pytest.mark.parametrize(
        "error", [Refused("422 too long"), RecordUnavailable("away"), ValueError("odd")]
    )
    def test_a_write_that_fails(self, error: Exception) -> None:
        @in_virtual_time
        async def run() -> None:
            scene = Scene()
            scene.records.order_faults("patch_status", Fault(error))
            running = asyncio.create_task(scene.controller.run())
            await asyncio.sleep(1)
            assert scene.ready("gatewaymodels", "model")["status"] == "True"
            await asyncio.sleep(RECHECK_SECONDS + 1)
            assert scene.ready("gatewayaccounts", "demo")["status"] == "True"
            assert not running.done()
            running.cancel()

        run()

    @in_virtual_time
    async def test_a_conflict_is_looked_at_again_at_once(self) -> None:
        scene = Scene()
        scene.records.order_faults("patch_status", Fault(Outdated("x")))
        running = asyncio.create_task(scene.controller.run())
        await asyncio.sleep(1)
        assert scene.ready("gatewayaccounts", "demo")["status"] == "True"
        running.cancel()

    @in_virtual_time
    async def test_a_long_problem_is_cut_to_what_a_condition_holds(self) -> None:
        scene = Scene()
        scene.problem = Problem(Reason.INVALID_FIELD, "x" * 10_000)
        _, _, message = await scene.shown("gatewayproviders", "simulated")
        assert len(message) <= 4096
        before = scene.writes
        await scene.controller.check_all()
        assert scene.writes == before


@in_virtual_time
async def test_changes_are_felt_by_others_at_once() -> None:
    scene = Scene()
    running = asyncio.create_task(scene.controller.run())
    await asyncio.sleep(1)
    scene.put_account(suspended=True)
    await asyncio.sleep(0.5)
    assert scene.ready("gatewaykeys", "key")["reason"] == "Suspended"
    scene.put_account(suspended=False)
    await asyncio.sleep(0.5)
    assert scene.ready("gatewaykeys", "key")["status"] == "True"
    running.cancel()


@in_virtual_time
async def test_own_writes_end_in_peace() -> None:
    """A condition written is a change too; it must not be answered with another write."""
    scene = Scene()
    running = asyncio.create_task(scene.controller.run())
    await asyncio.sleep(1000)
    assert scene.writes == 4
    running.cancel()
