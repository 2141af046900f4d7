"""Shows the health of providers and models in their status. Run by the owner of shard 0."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from gateway_core.api.model import GatewayModel
from gateway_core.api.provider import GatewayProvider
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import ObjectNotFound, WriteConflict, WriteOutcomeUnknown
from gateway_core.kube.informer import Cache
from gateway_core.providers.health import (
    Figures,
    HealthReports,
    Report,
    describe_health,
    sum_reports,
)
from gateway_core.providers.upstream import UpstreamDenied
from gateway_core.redis.link import CountersUnavailable
from gateway_operator.events import Events

SHOW_SECONDS = 34.0
"""Between two sweeps; spread by a tenth, so that an object is written at most every 30 s."""
TRUSTED_SECONDS = 60.0
"""How long shown figures stay while Redis is away."""


class HealthStatus:
    """Copies the sum of all processes' reports; one write for each object whose figures change."""

    def __init__(
        self,
        kube: KubernetesClient,
        events: Events,
        reports: HealthReports,
        providers: Cache[GatewayProvider],
        models: Cache[GatewayModel],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._reports = reports
        self._providers = providers
        self._models = models
        self._events = events
        self._clock = clock
        self._read_at = clock()

    async def sweep(self) -> int:
        """Write where the figures differ from the shown ones; how many objects.

        Raises CountersUnavailable, after a minute only once all figures are removed.
        """
        try:
            raw = await self._reports.read()
        except CountersUnavailable:
            if self._clock() >= self._read_at + TRUSTED_SECONDS:
                await self._show(Report())
            raise
        self._read_at = self._clock()
        return await self._show(sum_reports(raw))

    async def _show(self, total: Report) -> int:
        for name, figures in total.providers.items():
            if figures.denials and self._providers.get(name) is not None:
                # the API, which makes LLM calls, may write no Events
                text = (
                    f"{figures.denials} calls of the last three minutes were refused with 401, 402"
                    " or 403, or 404 for the address or model"
                )
                await self._events.report_refusal(name, UpstreamDenied(text))
        written = await self._show_each(GatewayProvider.plural, self._providers, total.providers)
        return written + await self._show_each(GatewayModel.plural, self._models, total.models)

    async def _show_each(
        self, plural: str, table: Cache[Any], figures: Mapping[str, Figures]
    ) -> int:
        written = 0
        for name, obj in list(table.items()):
            shown = obj.status.health
            health = describe_health(figures.get(name) or Figures(), shown)
            if health == shown:
                continue
            meta = {"name": name, "resourceVersion": obj.metadata.resource_version}
            change = None if health is None else health.model_dump(by_alias=True)
            try:
                await self._kube.patch_status(plural, {"metadata": meta}, {"health": change})
            except (WriteConflict, ObjectNotFound, WriteOutcomeUnknown):
                # it has just changed: the next sweep writes it
                continue
            written += 1
        return written
