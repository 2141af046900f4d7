"""What the API says of providers that it calls itself and cannot use."""

from typing import Any

import pytest
import structlog

from gateway_apiserver.metrics import ApiMetrics
from gateway_core.kube.errors import KubernetesUnavailable, RequestForbidden
from gateway_core.providers import registry as usecase
from gateway_core.providers.catalog_view import (
    CatalogView,
    ProviderWatch,
    project_model,
    project_provider,
)
from gateway_core.providers.registry import Providers
from tests.fakes.informer import FakeInformer
from tests.fakes.kubernetes import FakeKubernetes, Fault
from tests.fakes.moderation import FakeModeration

KIND = "gatewayproviders"


class Scene:
    """One provider with a Secret, watched; everything is looked up at each look."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(usecase, "SECRET_SECONDS", 0.0)
        self.kube = FakeKubernetes()
        self.kube.secrets["creds"] = {"token": b"s3cr3t"}
        self.table = FakeInformer(self.kube, KIND, project_provider)
        self.watch = ProviderWatch(
            Providers(
                self.table,
                self.kube,
                lambda *_: FakeModeration(),
                reading="the value that the process was given",
            )
        )
        self.metrics = ApiMetrics(list_providers=lambda: self.watch.states)

    def put(self, name: str = "judge") -> None:
        spec = {
            "type": "openai",
            "credentialsSecretRef": {"name": "creds", "key": "token"},
            "openai": {"baseUrl": "http://judge.example/v1"},
        }
        self.kube.put(KIND, {"metadata": {"name": name}, "spec": spec})

    async def look(self) -> list[dict[str, Any]]:
        """What is logged."""
        with structlog.testing.capture_logs() as lines:
            await self.watch.look()
        return [dict(line) for line in lines]

    def measure(self, name: str = "judge") -> float | None:
        return self.metrics.registry.get_sample_value("gateway_provider_usable", {"provider": name})


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


async def test_unreadable_secret_is_reported_once_with_a_remedy(scene: Scene) -> None:
    scene.put()
    scene.kube.order_faults("read_secret", *[Fault(RequestForbidden("forbidden"))] * 2)
    (line,) = await scene.look()
    assert (line["log_level"], line["provider"], line["reason"]) == (
        "warning",
        "judge",
        "SecretForbidden",
    )
    assert "creds" in line["problem"]
    assert "name it in the value that the process was given" in line["problem"]
    assert scene.measure() == 0
    assert await scene.look() == []
    (line,) = await scene.look()
    assert (line["log_level"], line["provider"]) == ("info", "judge")
    assert scene.measure() == 1
    assert await scene.look() == []


async def test_provider_that_is_usable_from_the_start_is_not_logged(scene: Scene) -> None:
    scene.put()
    assert await scene.look() == []
    assert scene.measure() == 1


async def test_new_problem_of_a_provider_is_logged_again(scene: Scene) -> None:
    scene.put()
    scene.kube.order_faults("read_secret", Fault(RequestForbidden("forbidden")))
    assert len(await scene.look()) == 1
    scene.kube.secrets["creds"] = {"other": b"x"}
    (line,) = await scene.look()
    assert "token" in line["problem"]


async def test_state_is_kept_while_the_kubernetes_api_is_away(scene: Scene) -> None:
    scene.put()
    away = Fault(KubernetesUnavailable("away"))
    scene.kube.order_faults("read_secret", away, None, away)
    assert await scene.look() == []
    assert scene.measure() is None
    await scene.look()
    assert await scene.look() == []
    assert scene.measure() == 1


async def test_metric_of_a_deleted_provider_is_removed(scene: Scene) -> None:
    scene.put()
    scene.put("second")
    await scene.look()
    await scene.kube.delete(KIND, "judge")
    await scene.look()
    assert (scene.measure(), scene.measure("second")) == (None, 1)


async def test_health_in_a_status_rebuilds_no_catalog() -> None:
    kube = FakeKubernetes()
    view = CatalogView(FakeInformer(kube, "gatewaymodels", project_model))
    route = {"name": "a", "providerName": "p", "upstreamModel": "up-1"}
    spec = {"modelId": "m", "service": "s", "action": "chat", "routes": [route]}
    prices = [{"inputPerMillionMicros": 1, "outputPerMillionMicros": 1}]
    obj = kube.put("gatewaymodels", {"metadata": {"name": "m"}, "spec": {**spec, "prices": prices}})
    first = view.current
    health = {"state": "Healthy", "callsPerMinute": 1, "errorPercent": 0}
    obj = await kube.patch_status("gatewaymodels", obj, {"health": health})
    assert view.current is first
    keyed = {"providerName": "p", "upstreamModel": "up-1"}
    obj = await kube.patch_status("gatewaymodels", obj, {"keyedRoute": keyed})
    second = view.current
    assert second is not first
    kube.put("gatewaymodels", {**obj, "spec": {**obj["spec"], "displayName": "New"}})
    assert view.current is not second
