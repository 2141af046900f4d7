"""The registry of providers: adapters follow their resources and credentials."""

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from gateway_core.api.conditions import Reason
from gateway_core.api.provider import GatewayProvider, ProviderSpec
from gateway_core.kube.errors import KubernetesUnavailable, RequestForbidden
from gateway_core.providers.catalog import Problem
from gateway_core.providers.registry import LONGEST_START_PAUSE, SECRET_SECONDS, Providers
from gateway_core.providers.upstream import AdapterFailed, Upstream
from tests.fakes.clock import in_virtual_time
from tests.fakes.informer import FakeInformer
from tests.fakes.kubernetes import FakeKubernetes, Fault
from tests.fakes.upstream import FakeUpstream

KIND = "gatewayproviders"
REF = {"name": "creds", "key": "token"}


class Simulation:
    """Providers on a record; `made` are (credential, upstream) in the order they were built."""

    def __init__(self) -> None:
        self.kube = FakeKubernetes()
        self.table = FakeInformer(self.kube, KIND, GatewayProvider.model_validate)
        self.made: list[tuple[str | None, FakeUpstream]] = []
        self.problem: Problem | None = None
        self.error: Exception | None = None
        self.started_in_vain: list[float] = []
        self.outage: Exception | None = None
        """What an adapter's start raises."""
        self.providers = Providers(self.table, self.kube, self._build, lambda _: self.problem)
        self.kube.secrets["creds"] = {"token": b" s3cr3t\n"}

    def put(self, **spec: Any) -> None:
        obj = {"metadata": {"name": "simulated"}, "spec": {"type": "fake", **spec}}
        self.kube.put(KIND, obj)

    async def find(self) -> Upstream | None:
        return await self.providers.find("simulated")

    async def check(self) -> Problem | None:
        return await self.providers.check("simulated")

    def _build(self, _: ProviderSpec, credential: str | None) -> Upstream:
        if self.error is not None:
            raise self.error
        upstream = FakeUpstream()
        if self.outage is not None:
            upstream.start = self._fail_start  # type: ignore[method-assign]
        self.made.append((credential, upstream))
        return upstream

    async def _fail_start(self) -> None:
        assert self.outage is not None
        self.started_in_vain.append(asyncio.get_running_loop().time())
        await asyncio.sleep(1)
        raise self.outage


@pytest.fixture
def sim() -> Simulation:
    return Simulation()


@in_virtual_time
async def test_adapter_is_built_once(sim: Simulation) -> None:
    sim.put()
    first = await sim.find()
    assert first is not None
    assert await sim.find() is first
    assert await sim.check() is None
    assert len(sim.made) == 1


@in_virtual_time
async def test_concurrent_lookups_build_one_adapter(sim: Simulation) -> None:
    sim.put(credentialsSecretRef=REF)
    found = await asyncio.gather(*(sim.find() for _ in range(20)))
    assert len(set(map(id, found))) == 1
    assert len(sim.made) == 1


@in_virtual_time
async def test_unknown_provider_is_none(sim: Simulation) -> None:
    assert await sim.find() is None
    problem = await sim.check()
    assert problem is not None
    assert problem.reason is Reason.PROVIDER_NOT_FOUND


@in_virtual_time
async def test_changed_provider_is_rebuilt_and_old_adapter_closed_later(sim: Simulation) -> None:
    sim.put()
    await sim.find()
    sim.put(maxConcurrentRequests=5)
    assert await sim.find() is sim.made[1][1]
    old = sim.made[0][1]
    assert not old.closed, "calls under way go on"
    await asyncio.sleep(200)
    assert old.closed
    assert not sim.made[1][1].closed


@in_virtual_time
async def test_removed_provider_is_recalled_until_it_is_made_again(sim: Simulation) -> None:
    sim.put()
    await sim.find()
    sim.kube.remove(KIND, "simulated")
    assert await sim.find() is None
    await asyncio.sleep(200)
    first = sim.made[0][1]
    assert await sim.providers.recall("simulated") is first
    assert not first.closed
    sim.put()
    assert await sim.providers.recall("simulated") is sim.made[1][1]
    await asyncio.sleep(200)
    assert first.closed


@in_virtual_time
async def test_provider_without_its_secret_is_recalled_with_it(sim: Simulation) -> None:
    sim.put(credentialsSecretRef=REF)
    await sim.find()
    sim.kube.secrets.clear()
    await asyncio.sleep(SECRET_SECONDS + 1)
    assert await sim.find() is None
    assert await sim.providers.recall("simulated") is sim.made[0][1]
    await sim.providers.close()
    assert sim.made[0][1].closed


@in_virtual_time
async def test_unusable_provider_that_was_never_usable_is_not_recalled(sim: Simulation) -> None:
    sim.kube.secrets.clear()
    sim.put(credentialsSecretRef=REF)
    assert await sim.providers.recall("simulated") is None


@in_virtual_time
async def test_rotated_credential_is_used_without_restart(sim: Simulation) -> None:
    sim.put(credentialsSecretRef=REF)
    await sim.find()
    sim.kube.secrets["creds"] = {"token": b"n3w"}
    await asyncio.sleep(SECRET_SECONDS + 1)
    await sim.find()
    assert [credential for credential, _ in sim.made] == ["s3cr3t", "n3w"]


@in_virtual_time
async def test_secrets_are_not_read_for_every_call(sim: Simulation) -> None:
    sim.put(credentialsSecretRef=REF)
    for _ in range(100):
        await sim.find()
        await asyncio.sleep(1)
    assert sim.kube.calls.count(("read_secret", "secrets")) <= 5


@pytest.mark.parametrize(
    "spoil",
    [
        lambda secrets: secrets.clear(),
        lambda secrets: secrets.update(creds={}),
        lambda secrets: secrets.update(creds={"token": b""}),
        lambda secrets: secrets.update(creds={"other": b"x"}),
    ],
    ids=["no secret", "no key", "empty", "another key"],
)
@in_virtual_time
async def test_missing_credential_is_a_problem_until_it_exists(
    sim: Simulation,
    spoil: Callable[[dict[str, Any]], Any],
) -> None:
    spoil(sim.kube.secrets)
    sim.put(credentialsSecretRef=REF)
    assert await sim.find() is None
    problem = await sim.check()
    assert problem is not None
    assert problem.reason is Reason.SECRET_NOT_FOUND
    assert "creds" in problem.message
    sim.kube.secrets["creds"] = {"token": b"x"}
    await asyncio.sleep(SECRET_SECONDS + 1)
    assert await sim.find() is not None
    assert await sim.check() is None


@in_virtual_time
async def test_invalid_resource_is_a_problem(sim: Simulation) -> None:
    sim.problem = Problem(Reason.INVALID_EXPRESSION, "http.poll.state: bad")
    sim.put()
    assert await sim.find() is None
    assert await sim.check() == sim.problem
    assert sim.made == []


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("type: 'grpc' is not known; there is http"), "'grpc' is not known"),
        (RuntimeError("boom"), "the log has the error"),
    ],
)
@in_virtual_time
async def test_failing_constructor_is_a_problem(
    sim: Simulation, error: Exception, text: str
) -> None:
    sim.error = error
    sim.put()
    assert await sim.find() is None
    problem = await sim.check()
    assert problem is not None
    assert text in problem.message


@in_virtual_time
async def test_forbidden_secret_is_a_problem(sim: Simulation) -> None:
    sim.kube.order_faults("read_secret", *[Fault(RequestForbidden("403"))] * 2)
    sim.put(credentialsSecretRef=REF)
    assert await sim.find() is None
    problem = await sim.check()
    assert problem is not None
    assert problem.reason is Reason.SECRET_FORBIDDEN
    assert problem.message == (
        "RBAC lacks get of Secret creds: name it in the chart's value operator.secretNames,"
        " or set operator.readAnySecret"
    )


class TestRecordAway:
    @in_virtual_time
    async def test_known_adapter_is_used_during_outage(self, sim: Simulation) -> None:
        sim.put(credentialsSecretRef=REF)
        known = await sim.find()
        sim.kube.away = True
        for _ in range(200):
            await asyncio.sleep(1)
            assert await sim.find() is known
        assert sim.kube.calls.count(("read_secret", "secrets")) < 80

    @in_virtual_time
    async def test_unknown_secret_raises_during_outage(self, sim: Simulation) -> None:
        sim.put(credentialsSecretRef=REF)
        sim.kube.away = True
        with pytest.raises(KubernetesUnavailable):
            await sim.find()
        sim.kube.away = False
        assert await sim.find() is not None


class TestStartFails:
    @in_virtual_time
    async def test_failed_start_is_retried_with_back_off(self, sim: Simulation) -> None:
        sim.outage = AdapterFailed("the provider is away")
        sim.put(credentialsSecretRef=REF)
        for _ in range(1200):
            assert await sim.find() is None
            await asyncio.sleep(1)
        problem = await sim.check()
        assert problem is not None
        assert problem.reason is Reason.ADAPTER_FAILED
        began = sim.started_in_vain
        pauses = [round(after - before) for before, after in pairwise(began)]
        assert pauses[0] <= 8
        assert pauses == sorted(pauses)
        assert 290 <= pauses[-1] <= 305
        sim.outage = None
        await asyncio.sleep(LONGEST_START_PAUSE)
        assert await sim.find() is not None
        assert await sim.check() is None
        made = len(sim.made)
        await asyncio.sleep(LONGEST_START_PAUSE)
        assert await sim.find() is sim.made[-1][1]
        assert len(sim.made) == made

    @in_virtual_time
    async def test_invalid_resource_is_not_retried(self, sim: Simulation) -> None:
        sim.outage = ValueError("config: region is missing")
        sim.put()
        for _ in range(600):
            await sim.find()
            await asyncio.sleep(1)
        assert len(sim.started_in_vain) == 1


@in_virtual_time
async def test_close_closes_replaced_adapter(sim: Simulation) -> None:
    sim.put()
    await sim.find()
    sim.put(maxConcurrentRequests=5)
    await sim.find()
    await sim.providers.close()
    assert [upstream.closed for _, upstream in sim.made] == [True, True]
