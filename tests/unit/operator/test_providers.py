"""The providers in use: made anew when they or their credentials change, and never a danger."""

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
from tests.fakes.kubernetes import FakeKubernetes
from tests.fakes.upstream import FakeUpstream

KIND = "gatewayproviders"
REF = {"name": "creds", "key": "token"}


class SecretRecords(FakeKubernetes):
    """Records whose Secrets a test may refuse."""

    error: Exception | None = None

    async def read_secret(self, name: str) -> dict[str, bytes]:
        data = await super().read_secret(name)
        if self.error is not None:
            raise self.error
        return data


class Scene:
    """Providers on a record; `made` are (credential, upstream) in the order they were built."""

    def __init__(self) -> None:
        self.kube = SecretRecords()
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


@in_virtual_time
async def test_a_provider_is_made_once() -> None:
    scene = Scene()
    scene.put()
    first = await scene.find()
    assert first is not None
    assert await scene.find() is first
    assert await scene.check() is None
    assert len(scene.made) == 1


@in_virtual_time
async def test_many_who_ask_at_once_get_one() -> None:
    scene = Scene()
    scene.put(credentialsSecretRef=REF)
    found = await asyncio.gather(*(scene.find() for _ in range(20)))
    assert len(set(map(id, found))) == 1
    assert len(scene.made) == 1


@in_virtual_time
async def test_an_unknown_one_is_none() -> None:
    scene = Scene()
    assert await scene.find() is None
    problem = await scene.check()
    assert problem is not None
    assert problem.reason is Reason.PROVIDER_NOT_FOUND


@in_virtual_time
async def test_a_changed_one_is_made_anew_and_the_old_one_closed_later() -> None:
    scene = Scene()
    scene.put()
    await scene.find()
    scene.put(maxConcurrentRequests=5)
    assert await scene.find() is scene.made[1][1]
    old = scene.made[0][1]
    assert not old.closed, "calls under way go on"
    await asyncio.sleep(200)
    assert old.closed
    assert not scene.made[1][1].closed


@in_virtual_time
async def test_one_that_is_taken_away_is_closed_later() -> None:
    scene = Scene()
    scene.put()
    await scene.find()
    scene.kube.remove(KIND, "simulated")
    assert await scene.find() is None
    await asyncio.sleep(200)
    assert scene.made[0][1].closed


@in_virtual_time
async def test_the_credential_is_the_secrets_without_white_space() -> None:
    scene = Scene()
    scene.put(credentialsSecretRef=REF)
    await scene.find()
    assert scene.made[0][0] == "s3cr3t"


@in_virtual_time
async def test_a_rotated_credential_is_taken_up_without_a_restart() -> None:
    scene = Scene()
    scene.put(credentialsSecretRef=REF)
    await scene.find()
    scene.kube.secrets["creds"] = {"token": b"n3w"}
    await asyncio.sleep(SECRET_SECONDS + 1)
    await scene.find()
    assert [credential for credential, _ in scene.made] == ["s3cr3t", "n3w"]


@in_virtual_time
async def test_secrets_are_not_read_for_every_call() -> None:
    scene = Scene()
    scene.put(credentialsSecretRef=REF)
    for _ in range(100):
        await scene.find()
        await asyncio.sleep(1)
    assert scene.kube.calls.count(("read_secret", "secrets")) <= 5


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
def test_a_missing_credential_is_told_and_mended(spoil: Callable[[dict[str, Any]], Any]) -> None:
    @in_virtual_time
    async def run() -> None:
        scene = Scene()
        spoil(scene.kube.secrets)
        scene.put(credentialsSecretRef=REF)
        assert await scene.find() is None
        problem = await scene.check()
        assert problem is not None
        assert problem.reason is Reason.SECRET_NOT_FOUND
        assert "creds" in problem.message
        scene.kube.secrets["creds"] = {"token": b"x"}
        await asyncio.sleep(SECRET_SECONDS + 1)
        assert await scene.find() is not None
        assert await scene.check() is None

    run()


@in_virtual_time
async def test_a_credential_that_is_taken_away_stops_the_provider() -> None:
    scene = Scene()
    scene.put(credentialsSecretRef=REF)
    await scene.find()
    scene.kube.secrets.clear()
    await asyncio.sleep(SECRET_SECONDS + 1)
    assert await scene.find() is None


@in_virtual_time
async def test_what_is_wrong_with_the_resource_is_told() -> None:
    scene = Scene()
    scene.problem = Problem(Reason.INVALID_EXPRESSION, "http.poll.state: bad")
    scene.put()
    assert await scene.find() is None
    assert await scene.check() == scene.problem
    assert scene.made == []


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("type: 'grpc' is not known; there is http"), "'grpc' is not known"),
        (RuntimeError("boom"), "RuntimeError"),
    ],
)
def test_one_that_cannot_be_made_is_a_problem_and_not_an_error(error: Exception, text: str) -> None:
    @in_virtual_time
    async def run() -> None:
        scene = Scene()
        scene.error = error
        scene.put()
        assert await scene.find() is None
        problem = await scene.check()
        assert problem is not None
        assert text in problem.message

    run()


@in_virtual_time
async def test_a_secret_the_operator_may_not_read_is_told() -> None:
    scene = Scene()
    scene.kube.error = RequestForbidden("403")
    scene.put(credentialsSecretRef=REF)
    assert await scene.find() is None
    problem = await scene.check()
    assert problem is not None
    assert problem.reason is Reason.SECRET_FORBIDDEN
    assert problem.message == (
        "RBAC lacks get of Secret creds: name it in the chart's value operator.secretNames,"
        " or set operator.readAnySecret"
    )


class TestRecordAway:
    @in_virtual_time
    async def test_what_was_known_goes_on(self) -> None:
        scene = Scene()
        scene.put(credentialsSecretRef=REF)
        known = await scene.find()
        scene.kube.away = True
        for _ in range(200):
            await asyncio.sleep(1)
            assert await scene.find() is known
        assert scene.kube.calls.count(("read_secret", "secrets")) < 80

    @in_virtual_time
    async def test_what_was_not_is_told_to_be_tried_again(self) -> None:
        scene = Scene()
        scene.put(credentialsSecretRef=REF)
        scene.kube.away = True
        with pytest.raises(KubernetesUnavailable):
            await scene.find()
        scene.kube.away = False
        assert await scene.find() is not None


@in_virtual_time
async def test_the_end_closes_all() -> None:
    scene = Scene()
    scene.put()
    await scene.find()
    await scene.providers.close()
    assert scene.made[0][1].closed


class TestStartFails:
    @in_virtual_time
    async def test_it_is_started_again_after_growing_pauses(self) -> None:
        scene = Scene()
        scene.outage = AdapterFailed("the provider is away")
        scene.put(credentialsSecretRef=REF)
        for _ in range(1200):
            assert await scene.find() is None
            await asyncio.sleep(1)
        problem = await scene.check()
        assert problem is not None
        assert problem.reason is Reason.ADAPTER_FAILED
        began = scene.started_in_vain
        pauses = [round(after - before) for before, after in pairwise(began)]
        assert pauses[0] <= 8
        assert pauses == sorted(pauses)
        assert 290 <= pauses[-1] <= 305
        scene.outage = None
        await asyncio.sleep(LONGEST_START_PAUSE)
        assert await scene.find() is not None
        assert await scene.check() is None
        made = len(scene.made)
        await asyncio.sleep(LONGEST_START_PAUSE)
        assert await scene.find() is scene.made[-1][1]
        assert len(scene.made) == made

    @in_virtual_time
    async def test_what_is_wrong_with_the_resource_is_not_tried_again(self) -> None:
        scene = Scene()
        scene.outage = ValueError("config: region is missing")
        scene.put()
        for _ in range(600):
            await scene.find()
            await asyncio.sleep(1)
        assert len(scene.started_in_vain) == 1


@in_virtual_time
async def test_one_that_was_replaced_a_moment_ago_is_closed_at_the_end() -> None:
    scene = Scene()
    scene.put()
    await scene.find()
    scene.put(maxConcurrentRequests=5)
    await scene.find()
    await scene.providers.close()
    assert [upstream.closed for _, upstream in scene.made] == [True, True]
