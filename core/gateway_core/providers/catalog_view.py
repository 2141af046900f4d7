"""Models and providers that this process can call now."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from pydantic import ValidationError

from gateway_core.api.conditions import Reason
from gateway_core.api.errors import Unavailable
from gateway_core.api.model import GatewayModel
from gateway_core.api.provider import GatewayProvider
from gateway_core.concurrency import Supervisor
from gateway_core.kube.errors import KubernetesUnavailable
from gateway_core.kube.informer import Cache
from gateway_core.providers.catalog import Catalog, Problem, build_catalog
from gateway_core.providers.registry import DIRECT_TYPES, Providers

_log = structlog.get_logger(__name__)


def project_model(obj: Mapping[str, Any]) -> GatewayModel | None:
    """Return the model of an object; None if this release cannot read it."""
    try:
        return GatewayModel.model_validate(obj)
    except ValidationError as error:
        _log.warning("a model cannot be read", name=obj["metadata"]["name"], error=str(error))
        return None


def project_provider(obj: Mapping[str, Any]) -> GatewayProvider | None:
    """Return an object's provider; None where the API does not call it or cannot read it."""
    if obj["spec"].get("type") not in DIRECT_TYPES:
        return None
    try:
        return GatewayProvider.model_validate(obj)
    except ValidationError as error:
        # the input may be a header's value
        texts = [problem["msg"] for problem in error.errors(include_input=False)]
        _log.warning("a provider cannot be read", name=obj["metadata"]["name"], error=texts)
        return None


def watch_catalog(models: Cache[GatewayModel], changed: Callable[[], None]) -> None:
    """Call `changed` whenever the catalog may have changed.

    The health in a model's status changes often, and is no part of the catalog.
    """
    seen = dict(models.items())

    def observe(name: str) -> None:
        before, after = seen.pop(name, None), models.get(name)
        if after is not None:
            seen[name] = after
        if before is None or after is None or not _is_same(before, after):
            changed()

    models.subscribe(observe)


def _is_same(before: GatewayModel, after: GatewayModel) -> bool:
    if before.metadata.uid != after.metadata.uid or before.spec != after.spec:
        return False
    return before.status == after.status.model_copy(update={"health": before.status.health})


class CatalogView:
    """The catalog of models that can be called now."""

    def __init__(self, models: Cache[GatewayModel]) -> None:
        self._models = models
        self._catalog: Catalog | None = None
        watch_catalog(models, self._forget)

    @property
    def current(self) -> Catalog:
        """The catalog; a new one after each change. Unavailable before the first list."""
        if self._catalog is None:
            if not self._models.synced:
                raise Unavailable("The gateway is starting.", retry_after=1)
            self._catalog, _ = build_catalog(model for _, model in self._models.items())
        return self._catalog

    def _forget(self) -> None:
        self._catalog = None


LOOK_SECONDS = 5.0
"""`Providers` reads a Secret at most every half minute, however often it is asked."""


class ProviderWatch:
    """Checks all of `providers` while `run` runs."""

    def __init__(self, providers: Providers[Any], supervisor: Supervisor | None = None) -> None:
        self._supervisor = supervisor or Supervisor()
        self._providers = providers
        self._problems: dict[str, Problem | None] = {}

    @property
    def states(self) -> Mapping[str, bool]:
        """By name, whether a provider can be used."""
        return {name: problem is None for name, problem in self._problems.items()}

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            with self._supervisor.guard("providers"):
                await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Check each provider once. If one cannot be checked, its last state holds."""
        names = [name for name, _ in self._providers.table.items()]
        for name in self._problems.keys() - set(names):
            del self._problems[name]
        for name in names:
            try:
                problem = await self._providers.check(name)
            except KubernetesUnavailable:
                continue
            if problem is not None and problem.reason is Reason.PROVIDER_NOT_FOUND:
                continue  # it has gone meanwhile
            self._tell(name, problem)

    def _tell(self, name: str, problem: Problem | None) -> None:
        known = self._problems.get(name)
        self._problems[name] = problem
        if problem == known:
            return
        if problem is None:
            _log.info("a provider can be used again", provider=name)
            return
        _log.warning(
            "a provider cannot be used",
            provider=name,
            reason=str(problem.reason),
            problem=problem.message,
        )
