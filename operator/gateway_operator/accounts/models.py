"""Readiness of providers and models, and the catalog."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from gateway_core.api.conditions import Reason
from gateway_core.api.model import GatewayModel, KeyedRoute
from gateway_core.api.provider import GatewayProvider
from gateway_core.kube.informer import Cache
from gateway_core.llm.upstream import LlmUpstream
from gateway_core.providers.catalog import Catalog, Problem, build_catalog
from gateway_core.providers.catalog_view import watch_catalog
from gateway_core.providers.registry import DIRECT_TYPES, Providers
from gateway_core.providers.upstream import ModerationUpstream, SubmissionGuarantee, Upstream
from gateway_core.tasks.operations import CHAT, OPERATIONS
from gateway_operator.accounts.readiness import Finding, Ref, name_offered, refer

TEST = "gatewayctl providers test"
RECHECK_SECONDS = 30.0
"""Between two checks of a provider: its Secret or its adapter may have changed."""
_IDENTITIES = "models"


@dataclass(frozen=True, slots=True)
class ProvidersInUse:
    """Providers with jobs, and those that answer at once, as moderations and as LLM calls."""

    with_jobs: Providers[Upstream]
    moderations: Providers[ModerationUpstream]
    llm: Providers[LlmUpstream]

    def of_type(self, type_: str) -> Providers[Any]:
        """Return the providers of that type."""
        return self.llm if type_ in DIRECT_TYPES else self.with_jobs

    def for_model(self, model: GatewayModel) -> Providers[Any]:
        """Return the providers that a model's routes have to lead to."""
        if model.spec.action == CHAT.action:
            return self.llm
        operation = OPERATIONS.get(model.spec.action)
        makes_tasks = operation is None or operation.makes_tasks
        return self.with_jobs if makes_tasks else self.moderations


@dataclass(eq=False)
class ProviderKind:
    """A provider is ready if its adapter can be started, and its credential was not refused.

    A refused one is still called: only a call can show that the credential works again.
    """

    kind = GatewayProvider
    contested = ""

    table: Cache[GatewayProvider]
    providers: ProvidersInUse

    def list_references(self, obj: GatewayProvider) -> Iterable[Ref]:
        """Return none: its Secret is not watched."""
        return ()

    async def check(self, obj: GatewayProvider) -> Finding:
        """Check what calls to it would find."""
        problem = await self.providers.of_type(obj.spec.type).check(obj.metadata.name)
        refusal, note = read_test(obj)
        return Finding(problem or refusal, again_in=RECHECK_SECONDS, note=note)


def read_test(obj: GatewayProvider) -> tuple[Problem | None, Problem | None]:
    """Return what calls have shown of a provider, as a problem or as a note."""
    test, name = obj.status.test, obj.metadata.name
    if test is None or test.generation != obj.metadata.generation:
        text = f"not tested: no call since it was created or changed; `{TEST} {name}` makes one"
        return None, Problem(Reason.NOT_TESTED, text)
    seen = f"{(test.message or test.outcome).rstrip('.')} (at {test.time})"
    if test.outcome == "Refused":
        text = f"the provider refuses the credential: {seen}; once corrected, `{TEST} {name}`"
        return Problem(Reason.CREDENTIALS_REFUSED, text), None
    if test.outcome == "Failed":
        return None, Problem(Reason.CALLS_FAIL, f"no call has succeeded yet: {seen}")
    return None, Problem(Reason.AVAILABLE, f"ready: a call succeeded at {test.time}")


class Models:
    """A model is ready if it is in the catalog and one of its routes leads to a ready provider."""

    kind = GatewayModel
    contested = _IDENTITIES

    def __init__(self, table: Cache[GatewayModel], providers: ProvidersInUse) -> None:
        self.table = table
        self._providers = providers
        self._known: dict[str, Problem] | None = None
        self._generations: dict[str, int] = {}
        table.subscribe(self._forget)

    def list_references(self, obj: GatewayModel) -> Iterable[Ref]:
        """Return the providers of its routes, and the identity that models of the same id share."""
        spec = obj.spec
        routes = [refer(GatewayProvider, route.provider_name) for route in spec.routes]
        return [*routes, f"{_IDENTITIES}/{spec.service}/{spec.action}/{spec.model_id}"]

    def list_offered(self, obj: GatewayModel) -> Iterable[Ref]:
        """Return its id and its service, which lists of keys and guardrails may name."""
        spec = obj.spec
        return name_offered("models", spec.model_id), name_offered("providers", spec.service)

    async def check(self, obj: GatewayModel) -> Finding:
        """Check whether the catalog accepts it, and then its routes."""
        if self._known is None:
            _, self._known = build_catalog(entry for _, entry in self.table.items())
        known = self._known.get(obj.metadata.name)
        problem, note = (known, None) if known else await self._check_routes(obj)
        route = None if problem else await self._find_keyed_route(obj)
        if route == obj.status.keyed_route:
            return Finding(problem, note=note)
        shown = None if route is None else route.model_dump(by_alias=True)
        return Finding(problem, {"keyedRoute": shown}, note=note)

    async def _find_keyed_route(self, model: GatewayModel) -> KeyedRoute | None:
        """Return the first usable route, if a repeated submission there is the same job."""
        if self._providers.for_model(model) is not self._providers.with_jobs:
            return None
        for route in model.spec.routes:
            upstream = await self._providers.with_jobs.find(route.provider_name)
            if upstream is None:
                continue
            if upstream.guarantee is not SubmissionGuarantee.IDEMPOTENCY_KEY:
                return None
            name, upstream_model = route.provider_name, route.upstream_model
            return KeyedRoute(provider_name=name, upstream_model=upstream_model)
        return None

    def _forget(self, name: str) -> None:
        """Invalidate the catalog, unless the model's status alone has changed."""
        obj = self.table.get(name)
        before = self._generations.pop(name, None)
        if obj is not None:
            self._generations[name] = obj.metadata.generation
        if obj is None or obj.metadata.generation != before:
            self._known = None

    async def _check_routes(self, model: GatewayModel) -> tuple[Problem | None, Problem | None]:
        """Return the first route's problem if none is ready, else a note of missing providers."""
        found: list[Problem | None] = []
        providers = self._providers.for_model(model)
        for route in model.spec.routes:
            problem = await providers.check(route.provider_name)
            provider = providers.table.get(route.provider_name)
            if problem is None and provider is not None:
                problem, _ = read_test(provider)
            if problem is not None and problem.reason is not Reason.PROVIDER_NOT_FOUND:
                text = f"provider {route.provider_name} is not ready: {problem.message}"
                problem = Problem(Reason.PROVIDER_NOT_READY, text)
            found.append(problem)
        if all(found):
            return next(iter(found), None), None
        missing = [
            each.message for each in found if each and each.reason is Reason.PROVIDER_NOT_FOUND
        ]
        text = f"ready, but {'; '.join(missing)}"
        return None, Problem(Reason.PROVIDER_NOT_FOUND, text) if missing else None


def follow_catalog(models: Cache[GatewayModel]) -> Callable[[], Catalog]:
    """Return a function that returns the catalog, rebuilt after a model has changed."""
    current: list[Catalog] = []
    watch_catalog(models, current.clear)

    def read() -> Catalog:
        if not current:
            current.append(build_catalog(entry for _, entry in models.items())[0])
        return current[0]

    return read
