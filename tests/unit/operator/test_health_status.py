"""The operator shows the health of providers and models, with few writes."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gateway_core.api.model import GatewayModel
from gateway_core.api.provider import GatewayProvider
from gateway_core.kube.errors import WriteConflict
from gateway_core.providers.health import HealthReporter, HealthTally
from gateway_core.providers.registry import Providers
from gateway_core.providers.upstream import (
    UpstreamBusy,
    UpstreamDenied,
    UpstreamError,
    UpstreamGone,
    UpstreamRejected,
    UpstreamUnclear,
)
from gateway_core.redis.link import CountersUnavailable
from gateway_operator.accounts.health import FIGURES_SECONDS, TRUSTED_SECONDS, HealthStatus
from gateway_operator.events import Events
from gateway_operator.metrics import Metrics
from gateway_operator.tasks.calls import COPY, ProviderCalls, TaskTraces
from tests.fakes.health import FakeHealthReports
from tests.fakes.informer import FakeInformer
from tests.fakes.kubernetes import FakeKubernetes, Fault


class Bench:
    """The sweep on fakes, with a provider and a model, and a process that calls them."""

    def __init__(self) -> None:
        self.kube, self.reports, self.tally = FakeKubernetes(), FakeHealthReports(), HealthTally()
        self.now = 0.0
        self.wall = datetime(2026, 11, 21, 10, tzinfo=UTC)
        providers = FakeInformer(self.kube, "gatewayproviders", GatewayProvider.model_validate)
        models = FakeInformer(self.kube, "gatewaymodels", GatewayModel.model_validate)
        self.events = Events(self.kube, self.kube.post_event)
        self.status = HealthStatus(
            self.kube,
            self.events,
            self.reports,
            providers,
            models,
            lambda: self.now,
            lambda: self.wall,
        )
        spec: dict[str, Any] = {"type": "google", "google": {"baseUrl": "http://127.0.0.1:1"}}
        self.kube.put("gatewayproviders", {"metadata": {"name": "p"}, "spec": spec})
        route = {"name": "a", "providerName": "p", "upstreamModel": "up-1"}
        spec = {"modelId": "m", "service": "sim", "action": "chat", "routes": [route]}
        self.kube.put("gatewaymodels", {"metadata": {"name": "m"}, "spec": spec})

    async def report(self, answers: int = 0, failures: int = 0, *, denied: bool = False) -> None:
        for figures in (self.tally.providers["p"], self.tally.models["m"]):
            for _ in range(answers):
                figures.note_answer(0.2)
            for _ in range(failures):
                figures.note_failure(denied=denied)
        await HealthReporter(self.tally, self.reports, "api-1").report()

    async def sweep(self) -> int:
        self.now += 34
        self.reports.now += 34
        return await self.status.sweep()

    def read_test(self) -> dict[str, Any]:
        provider: dict[str, Any] = self.kube.find("gatewayproviders", "p") or {}
        return (provider.get("status") or {}).get("test") or {}

    def show(self, plural: str = "gatewayproviders", name: str = "p") -> dict[str, Any] | None:
        return ((self.kube.find(plural, name) or {}).get("status") or {}).get("health")


async def test_health_is_written_once_until_it_changes() -> None:
    bench = Bench()
    await bench.report(answers=30)
    assert await bench.status.sweep() == 2
    shown = {"state": "Healthy", "callsPerMinute": 10, "errorPercent": 0, "latencyMillis": 200}
    assert bench.show() == bench.show("gatewaymodels", "m") == shown
    assert await bench.status.sweep() == 0
    await bench.report(answers=1)
    assert await bench.status.sweep() == 0
    await bench.report(failures=31)
    assert await bench.status.sweep() == 2
    assert bench.show() == {
        "state": "Failing",
        "callsPerMinute": 21,
        "errorPercent": 50,
        "latencyMillis": 200,
    }


async def test_health_of_a_dead_process_is_removed() -> None:
    bench = Bench()
    await bench.report(answers=5)
    assert await bench.status.sweep() == 2
    assert await bench.sweep() == 2
    assert bench.show() is None


async def test_lost_redis_leaves_no_stale_health() -> None:
    bench = Bench()
    await bench.report(answers=5)
    await bench.status.sweep()
    bench.reports.away = True
    shown = []
    for _ in range(3):
        try:
            await bench.sweep()
        except CountersUnavailable:
            shown.append(bench.show() is not None)
    assert shown == [True, False, False]
    assert 34 < TRUSTED_SECONDS < 68


async def test_lost_compare_and_set_is_written_by_next_sweep() -> None:
    bench = Bench()
    await bench.report(answers=5)
    bench.kube.order_faults("patch_status", Fault(WriteConflict("changed")))
    assert await bench.status.sweep() == 1
    assert await bench.status.sweep() == 1
    assert bench.show() is not None


async def test_denied_llm_calls_are_an_event_of_the_provider() -> None:
    bench = Bench()
    await bench.report(failures=2, denied=True)
    await bench.status.sweep()
    await bench.status.sweep()
    ((name, reason, message),) = bench.kube.events
    assert (name, reason) == ("p", "CredentialsRefused")
    assert message.startswith("2 calls of the last three minutes were refused")


@pytest.mark.parametrize(
    ("error", "failures"),
    [
        (None, 0),
        (UpstreamBusy("busy"), 1),
        (UpstreamDenied("denied"), 1),
        (UpstreamUnclear("unclear"), 1),
    ],
)
def test_operators_own_calls_count_for_their_provider(
    error: UpstreamError | None, failures: int
) -> None:
    calls = make_calls()
    with suppress(UpstreamError), calls.time("p", "moderate", "m"):
        if error is not None:
            raise error
    total = calls.health.sum()
    for figures in (total.providers["p"], total.models["m"]):
        assert (figures.calls, figures.failures) == (1, failures)


def test_rejected_lost_and_cut_short_calls_and_downloads_count_for_nothing() -> None:
    calls = make_calls()
    for error in (UpstreamRejected("bad"), UpstreamGone("gone"), TimeoutError()):
        with suppress(UpstreamError, TimeoutError), calls.time("p", "poll"):
            raise error
    with calls.time("p", COPY):
        pass
    assert calls.health.sum().providers == {}


def make_calls() -> ProviderCalls:
    kube = FakeKubernetes()
    table = FakeInformer(kube, "gatewayproviders", GatewayProvider.model_validate)

    def build(*_: Any) -> Any:
        raise ValueError("no call is sent")

    return ProviderCalls(Providers(table, kube, build), Metrics(), TaskTraces(), lambda _: None)


async def test_outcome_of_calls_is_written_when_it_changes_and_hourly() -> None:
    bench = Bench()
    assert await bench.status.sweep() == 0
    assert bench.read_test() == {}
    await bench.report(failures=3)
    await bench.status.sweep()
    assert bench.read_test()["outcome"] == "Failed"
    await bench.report(failures=5, denied=True)
    await bench.status.sweep()
    assert bench.read_test()["outcome"] == "Refused"
    assert "401" in bench.read_test()["message"]
    await bench.report(answers=20)
    await bench.status.sweep()
    first = bench.read_test()
    assert first["outcome"] == "Succeeded"
    assert "message" not in first
    # failures say nothing of a credential that has worked
    bench.tally = HealthTally()
    await bench.report(failures=9)
    await bench.status.sweep()
    assert bench.read_test() == first
    bench.tally = HealthTally()
    await bench.report(answers=20)
    await bench.status.sweep()
    writes = len(bench.kube.calls)
    bench.wall += timedelta(minutes=59)
    await bench.status.sweep()
    assert len(bench.kube.calls) == writes
    bench.wall += timedelta(minutes=2)
    await bench.status.sweep()
    assert bench.read_test()["time"] > first["time"]


async def test_calls_before_a_change_of_the_provider_do_not_count() -> None:
    bench = Bench()
    await bench.report(answers=20)
    await bench.status.sweep()
    provider: dict[str, Any] = bench.kube.find("gatewayproviders", "p") or {}
    metadata = {**provider["metadata"], "generation": 2}
    bench.kube.put("gatewayproviders", {**provider, "metadata": metadata})
    for _ in range(12):
        await bench.sweep()
        await bench.report(failures=40, denied=True)
        await bench.status.sweep()
        if bench.read_test()["generation"] == 2:
            break
    assert bench.now > FIGURES_SECONDS
    assert bench.read_test()["outcome"] == "Refused"
