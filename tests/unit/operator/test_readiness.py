"""`Ready` of the standing kinds: it says what the other parts decide by, and what to mend."""

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from gateway_core.api.account import AccountDefaults, GatewayAccount, GatewayUser
from gateway_core.api.conditions import Reason
from gateway_core.api.guardrail import GatewayGuardrail
from gateway_core.api.ids import REMAINS_FINALIZER
from gateway_core.api.key import GatewayKey
from gateway_core.api.model import GatewayModel
from gateway_core.api.provider import GatewayProvider
from gateway_core.kube.errors import KubernetesUnavailable, RequestRejected, WriteConflict
from gateway_core.llm.upstream import LlmUpstream
from gateway_core.providers.catalog import Problem
from gateway_core.providers.offers import Offers
from gateway_core.providers.registry import Providers, build_moderation
from gateway_core.providers.upstream import ModerationUpstream, SubmissionGuarantee
from gateway_operator.accounts.declaredkeys import DeclaredKeys
from gateway_operator.accounts.kinds import (
    Accounts,
    Guardrails,
    Keys,
    Users,
    project_guardrail,
    project_key,
)
from gateway_operator.accounts.memberships import Memberships
from gateway_operator.accounts.models import (
    RECHECK_SECONDS,
    Models,
    ProviderKind,
    ProvidersInUse,
)
from gateway_operator.accounts.readiness import ReadinessController
from gateway_operator.accounts.removal import RemainsRemoval
from gateway_operator.context import Failpoints
from gateway_operator.events import Events
from gateway_operator.termination import Termination
from tests.fakes.clock import in_virtual_time
from tests.fakes.counters import FakeCounters
from tests.fakes.informer import FakeInformer
from tests.fakes.kubernetes import FakeKubernetes, Fault
from tests.fakes.objects import FakeObjects
from tests.fakes.secrets import FakeSecrets
from tests.fakes.upstream import FakeUpstream
from tests.unit.operator.declarations import Declarations

NOW = datetime(2026, 11, 21, 10, tzinfo=UTC)


class Simulation(Declarations):
    """The controller on fakes, with one good object of each kind."""

    def __init__(self) -> None:
        self.kube = FakeKubernetes()
        self.now = NOW
        self.problem: Problem | None = None
        self.guarantee = SubmissionGuarantee.IDEMPOTENCY_KEY
        self.running: asyncio.Task[None] | None = None
        kinds = (
            *(GatewayAccount, GatewayUser, GatewayKey, GatewayGuardrail),
            *(GatewayModel, GatewayProvider),
        )
        shortened = {GatewayKey: project_key, GatewayGuardrail: project_guardrail}
        tables: Any = {
            kind: FakeInformer(self.kube, kind.plural, shortened.get(kind, kind.model_validate))
            for kind in kinds
        }
        accounts, users, keys = (tables[k] for k in (GatewayAccount, GatewayUser, GatewayKey))
        self.providers = Providers(
            tables[GatewayProvider],
            self.kube,
            lambda *_: FakeUpstream(self.guarantee),
            lambda _: self.problem,
        )
        self.moderations: Providers[ModerationUpstream] = Providers(
            tables[GatewayProvider], self.kube, build_moderation
        )
        llm = Providers(tables[GatewayProvider], self.kube, LlmUpstream)
        in_use = ProvidersInUse(self.providers, self.moderations, llm)
        offers = Offers(tables[GatewayModel])
        declared = DeclaredKeys(FakeSecrets(), {1: b"p" * 32}, Failpoints(), lambda: self.now)
        context: Any = SimpleNamespace(
            kube=self.kube,
            store=FakeObjects(),
            failpoints=Failpoints(),
            now=lambda: self.now,
            termination=Termination(self.kube),
        )
        self.counters = FakeCounters()
        self.store = context.store
        removal = RemainsRemoval(context, self.counters, users, keys)
        self.kinds: tuple[Any, ...] = (
            Accounts(accounts, AccountDefaults(60, 7), removal),
            Users(users, accounts, removal, Memberships(context, accounts)),
            Keys(keys, accounts, users, declared, lambda: self.now, offers),
            Guardrails(tables[GatewayGuardrail], accounts, keys, offers),
            ProviderKind(tables[GatewayProvider], in_use),
            Models(tables[GatewayModel], in_use),
        )
        events = Events(self.kube, self.kube.post_event)
        self.controller = ReadinessController(self.kube, self.kinds, events, lambda: self.now)
        self.put_account()
        self.put_key("key")
        self.put_provider()
        self.put_model()

    def put(self, plural: str, name: str, spec: dict[str, Any]) -> None:
        old: dict[str, Any] = self.kube.find(plural, name) or {}
        generation = old.get("metadata", {}).get("generation", 0) + 1
        metadata: dict[str, Any] = {"name": name, "generation": generation}
        if plural in ("gatewayaccounts", "gatewayusers"):
            metadata["finalizers"] = [REMAINS_FINALIZER]
        obj = {"metadata": metadata, "spec": spec, "status": old.get("status", {})}
        self.kube.put(plural, obj)

    def ready(self, plural: str, name: str) -> dict[str, Any]:
        obj: dict[str, Any] = self.kube.find(plural, name) or {}
        conditions = (obj.get("status") or {}).get("conditions") or []
        return next((c for c in conditions if c["type"] == "Ready"), {})

    def keyed_route(self) -> dict[str, Any] | None:
        obj = self.kube.find("gatewaymodels", "model") or {}
        route: dict[str, Any] | None = (obj.get("status") or {}).get("keyedRoute")
        return route

    def count_looks(self) -> list[str]:
        looks: list[str] = []
        for kind in self.kinds:

            async def check(obj: Any, kind: Any = kind, work: Any = kind.check) -> Any:
                looks.append(f"{kind.kind.plural}/{obj.metadata.name}")
                return await work(obj)

            kind.check = check
        return looks

    async def shown(self, plural: str, name: str) -> tuple[str, str, str]:
        """What Ready says once all changes are followed."""
        await self.settle()
        ready = self.ready(plural, name)
        return ready["status"], ready["reason"], ready["message"]

    async def settle(self) -> None:
        """Has the controller follow all changes; it is started by the first."""
        if self.running is None:
            self.running = asyncio.create_task(self.controller.run())
        await asyncio.sleep(1)
        assert not self.running.done()

    @property
    def writes(self) -> int:
        return sum(method == "patch_status" for method, _ in self.kube.calls)


@pytest.fixture
def sim() -> Simulation:
    return Simulation()


ALL = [
    ("gatewayaccounts", "demo"),
    ("gatewaykeys", "key"),
    ("gatewayproviders", "simulated"),
    ("gatewaymodels", "model"),
]


@in_virtual_time
async def test_valid_objects_are_ready(sim: Simulation) -> None:
    for plural, name in ALL:
        shown = await sim.shown(plural, name)
        if plural == "gatewayproviders":
            assert shown[:2] == ("True", "NotTested")
        else:
            assert shown == ("True", "Available", "ready")


@in_virtual_time
async def test_unchanged_condition_is_not_written(sim: Simulation) -> None:
    await sim.settle()
    assert sim.writes == 4
    for plural, name in ALL:
        sim.put(plural, name, sim.kube.find(plural, name)["spec"])  # type: ignore[index]
    await asyncio.sleep(1000)
    assert sim.writes == 8


@in_virtual_time
async def test_new_generation_is_observed(sim: Simulation) -> None:
    await sim.settle()
    sim.put_account(displayName="renamed")
    await sim.settle()
    ready = sim.ready("gatewayaccounts", "demo")
    assert ready["observedGeneration"] == 2
    assert ready["lastTransitionTime"] == "2026-11-21T10:00:00Z"


@in_virtual_time
async def test_account_shows_the_limits_in_effect(sim: Simulation) -> None:
    sim.put_account("own", requestsPerMinute=5, storageBytes=0)
    await sim.settle()
    shown = {
        name: (sim.kube.find("gatewayaccounts", name) or {})["status"] for name in ("demo", "own")
    }
    assert [shown["demo"][f] for f in ("requestsPerMinute", "storageBytes")] == [60, 7]
    assert [shown["own"][f] for f in ("requestsPerMinute", "storageBytes")] == [5, 0]
    writes = sim.writes
    await sim.settle()
    assert sim.writes == writes
    sim.put_account("own", requestsPerMinute=5)
    await sim.settle()
    assert (sim.kube.find("gatewayaccounts", "own") or {})["status"]["storageBytes"] == 7


class TestKeys:
    @pytest.mark.parametrize(
        ("spec", "reason"),
        [
            ({"revoked": True}, Reason.REVOKED),
            ({"disabled": True}, Reason.DISABLED),
            ({"expirationTime": "2026-11-21T10:00:00Z"}, Reason.EXPIRED),
            ({"expirationTime": "2026-11-21T11:00:00+02:00"}, Reason.EXPIRED),
            ({"accountName": "nobody"}, Reason.ACCOUNT_NOT_FOUND),
            ({"allowedModels": [f"m{n}" for n in range(65)]}, Reason.TOO_LARGE),
            ({"metadata": {"n": "x" * 20_000}}, Reason.TOO_LARGE),
        ],
    )
    @in_virtual_time
    async def test_unusable_key_is_not_ready(
        self, sim: Simulation, spec: dict[str, Any], reason: Reason
    ) -> None:
        sim.put_key("key", **spec)
        status, shown, _ = await sim.shown("gatewaykeys", "key")
        assert (status, shown) == ("False", reason.value)

    @in_virtual_time
    async def test_key_with_distant_expiry_expires(self, sim: Simulation) -> None:
        sim.put_key("key", expirationTime="2026-11-21T22:00:00Z")
        await sim.settle()
        begin, passed = asyncio.get_running_loop().time(), 0.0
        while sim.ready("gatewaykeys", "key")["status"] == "True":
            await asyncio.sleep(60)
            passed = asyncio.get_running_loop().time() - begin
            assert passed <= 12 * 3600 + 60
            sim.now = NOW + timedelta(seconds=passed)
        assert passed >= 12 * 3600

    @in_virtual_time
    async def test_key_without_active_creator_is_not_ready(self, sim: Simulation) -> None:
        sim.put_key("key", createdBy="mia")
        assert (await sim.shown("gatewaykeys", "key"))[1] == "UserNotFound"
        sim.put_user("mia", "other")
        assert (await sim.shown("gatewaykeys", "key"))[1] == "NotAMember"
        sim.put_user("mia", "other", "demo")
        assert (await sim.shown("gatewaykeys", "key"))[0] == "True"
        sim.put_user("mia", "demo", suspended=True)
        status, reason, message = await sim.shown("gatewaykeys", "key")
        assert (status, reason) == ("False", "Suspended")
        assert "mia" in message
        sim.kube.remove("gatewayusers", "mia")
        assert (await sim.shown("gatewaykeys", "key"))[1] == "UserNotFound"


class TestUsers:
    @in_virtual_time
    async def test_user_is_ready_once_its_accounts_exist(self, sim: Simulation) -> None:
        sim.put_user("mia", "demo", "later")
        status, reason, message = await sim.shown("gatewayusers", "mia")
        assert (status, reason) == ("False", "AccountNotFound")
        assert "later" in message
        sim.put_account("later")
        assert (await sim.shown("gatewayusers", "mia"))[0] == "True"
        sim.kube.remove("gatewayaccounts", "later")
        assert (await sim.shown("gatewayusers", "mia"))[0] == "False"

    @in_virtual_time
    async def test_suspended_user_is_not_ready(self, sim: Simulation) -> None:
        sim.put_user("mia", suspended=True)
        assert (await sim.shown("gatewayusers", "mia"))[:2] == ("False", "Suspended")


class TestGuardrails:
    @in_virtual_time
    async def test_guardrail_is_ready_once_its_keys_exist(self, sim: Simulation) -> None:
        sim.put_guardrail("grd-a", "key", "key-later")
        status, reason, message = await sim.shown("gatewayguardrails", "grd-a")
        assert (status, reason) == ("False", "KeyNotFound")
        assert "key-later" in message
        sim.put_key("key-later", accountName="other")
        assert (await sim.shown("gatewayguardrails", "grd-a"))[1] == "KeyNotFound"
        sim.put_key("key-later")
        assert (await sim.shown("gatewayguardrails", "grd-a"))[0] == "True"

    @in_virtual_time
    async def test_guardrail_without_account_is_not_ready(self, sim: Simulation) -> None:
        sim.put_guardrail("grd-a", accountName="nobody")
        assert (await sim.shown("gatewayguardrails", "grd-a"))[1] == "AccountNotFound"

    @in_virtual_time
    async def test_ninth_guardrail_of_key_is_not_ready(self, sim: Simulation) -> None:
        for number in range(10):
            sim.kube.clock = lambda number=number: f"2026-11-21T10:00:{59 - number}Z"  # type: ignore[misc]
            sim.put_guardrail(f"grd-{number}", "key")
        sim.put_guardrail("grd-foreign", "key", accountName="other")
        await sim.settle()
        reasons = {n: sim.ready("gatewayguardrails", f"grd-{n}")["reason"] for n in range(10)}
        # made last are those that were put first: the clock went back
        too_many = {n for n, reason in reasons.items() if reason == "TooManyGuardrails"}
        assert too_many == {0, 1}
        sim.put_guardrail("grd-5")
        assert (await sim.shown("gatewayguardrails", "grd-1"))[0] == "True"
        assert (await sim.shown("gatewayguardrails", "grd-0"))[1] == "TooManyGuardrails"
        sim.kube.remove("gatewayguardrails", "grd-6")
        assert (await sim.shown("gatewayguardrails", "grd-0"))[0] == "True"


class TestCost:
    """What a change costs grows with what depends on the object, not with what there is."""

    @in_virtual_time
    async def test_change_checks_dependents_only(self, sim: Simulation) -> None:
        for number in range(300):
            sim.put_account(f"acct-{number}")
            sim.put_key(f"key-{number}", accountName=f"acct-{number}")
        looks = sim.count_looks()
        await sim.settle()
        # each once, and once more for the echo of its own condition
        assert len(looks) <= 2 * 604 + 4
        looks.clear()
        sim.put_account("acct-7", suspended=True)
        assert (await sim.shown("gatewaykeys", "key-7"))[1] == "Suspended"
        assert set(looks) == {"gatewayaccounts/acct-7", "gatewaykeys/key-7"}
        looks.clear()
        balance = {"balanceMicros": 5}
        account: Any = sim.kube.find("gatewayaccounts", "acct-8")
        await sim.kube.patch_status("gatewayaccounts", account, balance)
        await sim.settle()
        assert looks == ["gatewayaccounts/acct-8"]

    @in_virtual_time
    async def test_only_providers_are_checked_by_time(self, sim: Simulation) -> None:
        looks = sim.count_looks()
        await sim.settle()
        looks.clear()
        await asyncio.sleep(10 * RECHECK_SECONDS)
        assert set(looks) == {"gatewayproviders/simulated"}
        assert len(looks) <= 11


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
    @in_virtual_time
    async def test_invalid_model_is_not_ready(
        self, sim: Simulation, spec: dict[str, Any], reason: Reason
    ) -> None:
        sim.put_model(**spec)
        assert (await sim.shown("gatewaymodels", "model"))[:2] == ("False", reason.value)

    @in_virtual_time
    async def test_model_without_provider_is_not_ready(self, sim: Simulation) -> None:
        sim.kube.remove("gatewayproviders", "simulated")
        status, reason, message = await sim.shown("gatewaymodels", "model")
        assert (status, reason) == ("False", "ProviderNotFound")
        assert "simulated" in message

    @in_virtual_time
    async def test_model_of_unready_provider_is_not_ready(self, sim: Simulation) -> None:
        sim.problem = Problem(Reason.INVALID_EXPRESSION, "http.poll.state: bad")
        assert (await sim.shown("gatewayproviders", "simulated"))[1] == "InvalidExpression"
        status, reason, message = await sim.shown("gatewaymodels", "model")
        assert (status, reason) == ("False", "ProviderNotReady")
        assert message == "provider simulated is not ready: http.poll.state: bad"

    @in_virtual_time
    async def test_model_follows_provider_whose_secret_appears(self, sim: Simulation) -> None:
        """Secrets are not watched: the provider is checked by time, and its models after it."""
        sim.put_provider(credentialsSecretRef={"name": "acme", "key": "key"})
        assert (await sim.shown("gatewaymodels", "model"))[1] == "ProviderNotReady"
        sim.kube.secrets["acme"] = {"key": b"secret"}
        await asyncio.sleep(2 * RECHECK_SECONDS + 1)
        assert sim.ready("gatewayproviders", "simulated")["status"] == "True"
        assert sim.ready("gatewaymodels", "model")["status"] == "True"

    @in_virtual_time
    async def test_keyed_route_is_the_first_usable_route(self, sim: Simulation) -> None:
        sim.put_model(
            routes=[
                {"name": "a", "providerName": "nobody", "upstreamModel": "q3"},
                {"name": "b", "providerName": "simulated", "upstreamModel": "q4"},
            ]
        )
        assert (await sim.shown("gatewaymodels", "model"))[0] == "True"
        route = {"providerName": "simulated", "upstreamModel": "q4"}
        assert sim.keyed_route() == route
        writes = sim.kube.calls.count(("patch_status", "gatewaymodels"))
        await sim.settle()
        assert sim.kube.calls.count(("patch_status", "gatewaymodels")) == writes

    @pytest.mark.parametrize("change", ["provider without keys", "disabled model"])
    @in_virtual_time
    async def test_keyed_route_is_removed(self, sim: Simulation, change: str) -> None:
        await sim.settle()
        assert sim.keyed_route() is not None
        if change == "disabled model":
            sim.put_model(disabled=True)
        else:
            sim.guarantee = SubmissionGuarantee.LOOKUP
            sim.put_provider(config="changed")
        await sim.settle()
        assert sim.keyed_route() is None

    @in_virtual_time
    async def test_second_model_of_one_id_is_not_ready(self, sim: Simulation) -> None:
        sim.put_model("other", modelId="model")
        assert (await sim.shown("gatewaymodels", "model"))[0] == "True"
        assert (await sim.shown("gatewaymodels", "other"))[1] == "DuplicateModel"


class TestOddities:
    """One object that cannot be shown stops neither the others nor the operator."""

    @pytest.mark.parametrize(
        ("error", "seconds"),
        [
            (WriteConflict("x"), 0),
            (RequestRejected("422 too long"), RECHECK_SECONDS),
            (KubernetesUnavailable("away"), RECHECK_SECONDS),
            (ValueError("odd"), RECHECK_SECONDS),
        ],
    )
    @in_virtual_time
    async def test_failed_write_of_ready_is_retried(
        self, sim: Simulation, error: Exception, seconds: float
    ) -> None:
        sim.kube.order_faults("patch_status", Fault(error))
        await sim.settle()
        assert sim.ready("gatewaymodels", "model")["status"] == "True"
        await asyncio.sleep(seconds + 1)
        assert sim.ready("gatewayaccounts", "demo")["status"] == "True"
        await sim.settle()

    @in_virtual_time
    async def test_long_message_is_shortened_once(self, sim: Simulation) -> None:
        sim.problem = Problem(Reason.INVALID_FIELD, "x" * 10_000)
        _, _, message = await sim.shown("gatewayproviders", "simulated")
        assert len(message) <= 4096
        before = sim.writes
        await asyncio.sleep(RECHECK_SECONDS + 1)
        assert sim.writes == before


@in_virtual_time
async def test_lists_of_revoked_or_too_large_objects_are_dropped(sim: Simulation) -> None:
    """An account may have thousands of these, as large as etcd takes (I11)."""
    long = ["x" * 250] * 65
    sim.put_key("key-revoked", revoked=True, allowedModels=["a"], metadata={"n": "x"})
    sim.put_key("key-large", allowedModels=long)
    sim.put_guardrail("grd-large", "key", deniedModels=long)
    assert (await sim.shown("gatewayguardrails", "grd-large"))[:2] == ("False", "TooLarge")
    keys, guardrails = sim.kinds[2].table, sim.kinds[3].table
    for name in ("key-revoked", "key-large"):
        spec = keys.get(name).spec
        assert (spec.allowed_models, spec.metadata) == (None, None)
    spec = guardrails.get("grd-large").spec
    # what it denied stays denied
    assert (spec.allowed_models, spec.denied_models, spec.key_names) == ([], None, ["key"])


@pytest.mark.parametrize(
    "spec",
    [{"deniedModels": ["a\tb"]}, {"deniedModels": [""]}, {"requestsPerMinute": 0}],
    ids=["unprintable", "empty", "rate"],
)
def test_guardrail_that_the_schema_refuses_allows_nothing(spec: dict[str, Any]) -> None:
    """The operator must not lose a restriction that an older schema took."""
    base = {"accountName": "demo", "displayName": "d", "keyNames": ["key"]}
    obj = {"metadata": {"name": "grd-a", "uid": "u"}, "spec": {**base, **spec}}
    guardrail = project_guardrail(obj)
    assert guardrail.excess is not None
    assert (guardrail.spec.allowed_models, guardrail.spec.key_names) == ([], ["key"])


@in_virtual_time
async def test_dependents_follow_within_half_a_second(sim: Simulation) -> None:
    await sim.settle()
    sim.put_account(suspended=True)
    await asyncio.sleep(0.5)
    assert sim.ready("gatewayaccounts", "demo")["reason"] == "Suspended"
    assert sim.ready("gatewaykeys", "key")["reason"] == "Suspended"
    sim.put_account(suspended=False)
    await asyncio.sleep(0.5)
    assert sim.ready("gatewaykeys", "key")["status"] == "True"


OPENAI = {"type": "openai", "openai": {"baseUrl": "http://judge.example/v1"}}


@in_virtual_time
async def test_moderation_model_of_openai_provider_is_ready(
    sim: Simulation,
) -> None:
    sim.put_provider("judge", **OPENAI)
    route = {"name": "main", "providerName": "judge", "upstreamModel": "omni"}
    sim.put_model("judging", action="moderations", routes=[route])
    assert (await sim.shown("gatewayproviders", "judge"))[:2] == ("True", "NotTested")
    assert await sim.shown("gatewaymodels", "judging") == ("True", "Available", "ready")


@in_virtual_time
async def test_model_needs_provider_of_its_kind(sim: Simulation) -> None:
    sim.put_provider("judge", **OPENAI)
    route = {"name": "main", "providerName": "judge", "upstreamModel": "omni"}
    sim.put_model("film", prices=[{"perCallMicros": 1}], routes=[route])
    sim.put_model("judging", action="moderations")
    _, reason, message = await sim.shown("gatewaymodels", "judging")
    assert (reason, "serves no moderations" in message) == ("ProviderNotReady", True)
    sim.put_model("judging", action="moderations", prices=[{"perImageMicros": 1}])
    _, reason, message = await sim.shown("gatewaymodels", "judging")
    assert (reason, "are priced by call" in message) == ("InvalidPrice", True)


@in_virtual_time
async def test_invalid_openai_provider_names_its_fields(sim: Simulation) -> None:
    bad = {"baseUrl": "http://169.254.169.254/v1", "headers": [{"name": "X", "value": "{key}"}]}
    sim.put_provider("judge", type="openai", openai=bad)
    _, reason, message = await sim.shown("gatewayproviders", "judge")
    assert reason == "InvalidField"
    assert "openai.baseUrl: must not name" in message
    assert "openai.headers.X" in message


TESTED = {"time": "2026-11-21T10:00:00Z", "generation": 1}
SEEN = {
    "succeeded": (
        {"outcome": "Succeeded", **TESTED},
        ("True", "Available", "ready: a call succeeded at 2026-11-21T10:00:00Z"),
    ),
    "refused": (
        {"outcome": "Refused", "message": "401.", **TESTED},
        (
            "False",
            "CredentialsRefused",
            "the provider refuses the credential: 401 (at 2026-11-21T10:00:00Z);"
            " once corrected, `gatewayctl providers test simulated`",
        ),
    ),
    "failed": (
        {"outcome": "Failed", "message": "no answer", **TESTED},
        (
            "True",
            "CallsFail",
            "no call has succeeded yet: no answer (at 2026-11-21T10:00:00Z)",
        ),
    ),
}


@pytest.mark.parametrize("case", SEEN)
@in_virtual_time
async def test_provider_shows_what_calls_have_seen(sim: Simulation, case: str) -> None:
    test, expected = SEEN[case]
    status, reason, text = await sim.shown("gatewayproviders", "simulated")
    assert (status, reason) == ("True", "NotTested")
    assert text.startswith("not tested")
    obj: dict[str, Any] = sim.kube.find("gatewayproviders", "simulated") or {}
    sim.kube.put("gatewayproviders", {**obj, "status": {**obj["status"], "test": test}})
    assert await sim.shown("gatewayproviders", "simulated") == expected
    writes = sim.writes
    await asyncio.sleep(300)
    assert sim.writes == writes
    # another declaration was not tested
    sim.put_provider(maxConcurrentRequests=7)
    assert (await sim.shown("gatewayproviders", "simulated"))[:2] == ("True", "NotTested")


@in_virtual_time
async def test_model_is_not_ready_while_all_its_providers_refuse_the_credential(
    sim: Simulation,
) -> None:
    sim.put_provider("other")
    routes = [
        {"name": name, "providerName": name, "upstreamModel": "q4"}
        for name in ("simulated", "other")
    ]
    sim.put_model("both", modelId="both", routes=routes)
    assert (await sim.shown("gatewaymodels", "model"))[:2] == ("True", "Available")
    obj: dict[str, Any] = sim.kube.find("gatewayproviders", "simulated") or {}
    test, _ = SEEN["refused"]
    sim.kube.put("gatewayproviders", {**obj, "status": {**obj["status"], "test": test}})
    status, reason, text = await sim.shown("gatewaymodels", "model")
    assert (status, reason) == ("False", "ProviderNotReady")
    assert text.startswith("provider simulated is not ready: the provider refuses the credential")
    assert (await sim.shown("gatewaymodels", "both"))[:2] == ("True", "Available")
    obj = sim.kube.find("gatewayproviders", "simulated") or {}
    test, _ = SEEN["succeeded"]
    sim.kube.put("gatewayproviders", {**obj, "status": {**obj["status"], "test": test}})
    assert (await sim.shown("gatewaymodels", "model"))[:2] == ("True", "Available")


LISTS = {
    "allowedModels": ("nosuch-1", "nosuch-1 is not a model of this gateway"),
    "allowedProviders": ("nowhere", "nowhere is not a service of this gateway"),
}
DENIED = {
    "deniedModels": ("nosuch-1", "nosuch-1 is not a model of this gateway"),
    "deniedProviders": ("nowhere", "nowhere is not a service of this gateway"),
}


@pytest.mark.parametrize("field", [*LISTS, *DENIED])
@in_virtual_time
async def test_list_that_names_nothing_is_shown_until_a_model_has_the_name(
    sim: Simulation, field: str
) -> None:
    entry, text = {**LISTS, **DENIED}[field]
    known = "model" if field.endswith("Models") else "sim"
    spec = {field: [known, entry, f"{known[:2]}*"]}
    shown = [("gatewayguardrails", "grd-a")]
    sim.put_guardrail("grd-a", "key", **spec)
    if field in LISTS:
        sim.put_key("key", **spec)
        shown.append(("gatewaykeys", "key"))
    for plural, name in shown:
        expected = ("True", "NameNotFound", f"ready, but {field}: {text}")
        assert await sim.shown(plural, name) == expected
    changes = {"modelId": entry} if known == "model" else {"service": entry}
    sim.put_model("late", **changes)
    for plural, name in shown:
        assert await sim.shown(plural, name) == ("True", "Available", "ready")
    sim.kube.remove("gatewaymodels", "late")
    for plural, name in shown:
        assert (await sim.shown(plural, name))[1] == "NameNotFound"


@in_virtual_time
async def test_change_of_a_model_checks_no_key_and_no_other_model(sim: Simulation) -> None:
    sim.put_key("key", allowedModels=["model", "nosuch"])
    sim.put_model("other")
    await sim.settle()
    looks = sim.count_looks()
    sim.put_model("model", prices=[{"perCallMicros": 2}])
    await sim.settle()
    assert set(looks) == {"gatewaymodels/model"}


@in_virtual_time
async def test_model_names_the_missing_provider_of_a_fallback(sim: Simulation) -> None:
    routes = [
        {"name": name, "providerName": name, "upstreamModel": "q4"}
        for name in ("simulated", "nosuch")
    ]
    sim.put_model(routes=routes)
    expected = ("True", "ProviderNotFound", "ready, but no GatewayProvider is called nosuch")
    assert await sim.shown("gatewaymodels", "model") == expected
    sim.put_provider("nosuch")
    assert await sim.shown("gatewaymodels", "model") == ("True", "Available", "ready")
