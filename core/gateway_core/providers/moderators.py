"""Choice of the model, route and provider of a moderation call or a Batch's line."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from gateway_core.accounts.guardrails import Policy
from gateway_core.api.batch import ACTION
from gateway_core.api.errors import (
    GatewayError,
    InvalidRequest,
    Unavailable,
    UpstreamFailed,
    UpstreamRateLimited,
    UpstreamTimeout,
)
from gateway_core.api.model import Route
from gateway_core.kube.errors import KubernetesUnavailable
from gateway_core.providers.catalog import Catalog, Model
from gateway_core.providers.registry import Providers
from gateway_core.providers.suggestions import allow_all, refuse_model
from gateway_core.providers.upstream import (
    ModerationUpstream,
    UpstreamBusy,
    UpstreamError,
    UpstreamLimited,
    UpstreamRejected,
    UpstreamTimedOut,
)

CALL_FAILED = "The model's provider failed on this call."


def find_allowed_model(
    catalog: Catalog,
    action: str,
    model_id: str,
    policy: Policy | None,
    title: str = "model",
    param: str = "model",
) -> Model:
    """Return the first model of the id, of any service, that the key may call.

    `policy` is None without a key; `title` is what an error calls the model.

    Raises:
        NotFound: no model has the id (`model_not_found`).
        Forbidden: the key may call none of them.
    """
    found = catalog.find_models(action, model_id)
    if not found:
        allows = allow_all if policy is None else policy.allows
        raise refuse_model(catalog, model_id, allows, (action,), title, param)
    if policy is None:
        return found[0]
    allowed = (m for m in found if policy.find_refusal(m.service, m.model_id) is None)
    chosen = next(allowed, found[0])
    policy.check(chosen.service, chosen.model_id)
    return chosen


@dataclass(frozen=True, slots=True)
class Moderator:
    """Target of a model's calls."""

    model: Model
    route: Route
    upstream: ModerationUpstream


class Moderators:
    """Finds moderators in the present catalog, which `catalog` returns."""

    def __init__(
        self, catalog: Callable[[], Catalog], providers: Providers[ModerationUpstream]
    ) -> None:
        self._catalog = catalog
        self._providers = providers

    def find_model(self, model_id: str, policy: Policy | None, *, param: str = "model") -> Model:
        """Return the first moderation model of the id that the key may call.

        `find_allowed_model` has the rule.
        """
        catalog = self._catalog()
        return find_allowed_model(catalog, ACTION, model_id, policy, "moderation model", param)

    async def find(self, model: Model) -> Moderator:
        """Return the first route of a model whose provider is usable. Unavailable where none is."""
        for route in model.routes:
            try:
                upstream = await self._providers.find(route.provider_name)
            except KubernetesUnavailable:
                continue
            if upstream is not None:
                return Moderator(model, route, upstream)
        raise Unavailable(f"Model {model.model_id} cannot be reached now.")

    async def find_problems(self, model: Model) -> str:
        """Why none of a model's providers is usable, for admins."""
        texts = []
        for route in model.routes:
            problem = await self._providers.check(route.provider_name)
            if problem is not None:
                texts.append(f"provider {route.provider_name}: {problem.message}")
        return "; ".join(texts) or f"model {model.model_id} has no route that can be read now"


def explain(error: UpstreamError) -> GatewayError:
    """Return the client's error for a provider's failure (contract §1.3).

    It hides rejected credentials of the gateway and unknown upstream models: only the platform team
    can correct those.
    """
    wait = ceil(error.retry_after or 5)
    if isinstance(error, UpstreamRejected):
        return InvalidRequest(error.message, param="input")
    if isinstance(error, UpstreamLimited):
        return UpstreamRateLimited(error.message, retry_after=wait)
    if isinstance(error, UpstreamBusy):
        return Unavailable("The model's provider takes no calls at present.", retry_after=wait)
    if isinstance(error, UpstreamTimedOut):
        return UpstreamTimeout("The model's provider did not answer in time.")
    return UpstreamFailed(CALL_FAILED)
