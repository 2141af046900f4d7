"""Shows the health of providers and models in their status. Run by the owner of shard 0."""

import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from gateway_core.api.model import GatewayModel
from gateway_core.api.provider import GatewayProvider, ProviderTest, TestOutcome
from gateway_core.api.times import format_time, parse_time
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.clock import CLOCK
from gateway_core.kube.errors import ObjectNotFound, WriteConflict, WriteOutcomeUnknown
from gateway_core.kube.informer import Cache
from gateway_core.providers.health import (
    EXPIRE_SECONDS,
    PERIODS,
    REPORT_SECONDS,
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
FIGURES_SECONDS = PERIODS * REPORT_SECONDS + 2 * EXPIRE_SECONDS
RENEWED = timedelta(hours=1)
"""Between two writes of calls that end alike."""
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
        now: Callable[[], datetime] = CLOCK.now,
    ) -> None:
        self._kube = kube
        self._reports = reports
        self._providers = providers
        self._models = models
        self._events = events
        self._clock = clock
        self._now = now
        self._read_at = clock()
        self._seen: dict[str, tuple[int, float]] = {}

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

    def _find_test(self, obj: object, figures: Figures | None) -> dict[str, Any]:
        """Return the change of `status.test`; empty where it says so already."""
        if not isinstance(obj, GatewayProvider):
            return {}
        generation, begun = obj.metadata.generation, self._clock() - FIGURES_SECONDS
        # figures may be of calls before a change; there are none before the first declaration
        since = begun if generation == 1 else self._clock()
        if self._seen.get(obj.metadata.name, (0, 0.0))[0] != generation:
            self._seen[obj.metadata.name] = generation, since
        if figures is None or self._seen[obj.metadata.name][1] > begun:
            return {}
        test = judge_calls(figures, obj, self._now())
        if test is None:
            return {}
        return {"test": test.model_dump(by_alias=True)}

    async def _show_each(
        self, plural: str, table: Cache[Any], figures: Mapping[str, Figures]
    ) -> int:
        written = 0
        for name, obj in list(table.items()):
            shown = obj.status.health
            health = describe_health(figures.get(name) or Figures(), shown)
            test = self._find_test(obj, figures.get(name))
            if health == shown and not test:
                continue
            meta = {"name": name, "resourceVersion": obj.metadata.resource_version}
            change = None if health is None else health.model_dump(by_alias=True)
            changes = {**({} if health == shown else {"health": change}), **test}
            try:
                await self._kube.patch_status(plural, {"metadata": meta}, changes)
            except (WriteConflict, ObjectNotFound, WriteOutcomeUnknown):
                # it has just changed: the next sweep writes it
                continue
            written += 1
        return written


def judge_calls(figures: Figures, provider: GatewayProvider, now: datetime) -> ProviderTest | None:
    """Return what the calls of the last minutes show of a provider.

    Return None if its status says so already.

    A success is written anew after an hour. Failures say nothing of a credential that has worked.
    """
    generation, shown = provider.metadata.generation, provider.status.test
    before = shown if shown is not None and shown.generation == generation else None
    message: str | None = None
    if figures.denials > figures.answered:
        outcome: TestOutcome = "Refused"
        message = "calls were refused with 401, 402 or 403, or 404 for the address or model"
    elif figures.answered:
        outcome = "Succeeded"
    elif figures.failures:
        outcome, message = "Failed", "calls failed, or were not answered"
    else:
        return None
    if before is not None and outcome == "Failed":
        return None
    is_due = before is not None and now - parse_time(before.time) >= RENEWED
    if before is not None and before.outcome == outcome and not is_due:
        return None
    return ProviderTest(
        outcome=outcome, time=format_time(now), generation=generation, message=message
    )
