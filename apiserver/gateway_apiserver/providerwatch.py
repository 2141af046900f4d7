"""Whether this process can use the providers that it calls itself, told when that changes.

The operator says in `Ready` what it can use, and may read other Secrets than the API: a provider
may be Ready and every call of it here be answered with 503. Run by `compose`, shown by `metrics`.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import structlog

from gateway_core.concurrency import Supervisor
from gateway_core.contract.conditions import Reason
from gateway_core.domain.catalog import Problem
from gateway_core.ports.records import RecordUnavailable
from gateway_core.usecases.providers import Providers

LOOK_SECONDS = 5.0
"""`Providers` reads a Secret half a minute after the last time, however often it is asked."""

_log = structlog.get_logger(__name__)


class ProviderWatch:
    """Looks at all of `providers` while `run` runs."""

    def __init__(self, providers: Providers[Any], supervisor: Supervisor | None = None) -> None:
        self._supervisor = supervisor or Supervisor()
        self._providers = providers
        self._problems: dict[str, Problem | None] = {}

    @property
    def states(self) -> Mapping[str, bool]:
        """By name, whether a provider can be used."""
        return {name: problem is None for name, problem in self._problems.items()}

    async def run(self) -> None:
        """Looks again and again until cancelled."""
        while True:
            with self._supervisor.guard("providers"):
                await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Looks at each provider once. While one cannot be told, what was known of it stands."""
        names = [name for name, _ in self._providers.table.items()]
        for name in self._problems.keys() - set(names):
            del self._problems[name]
        for name in names:
            try:
                problem = await self._providers.check(name)
            except RecordUnavailable:
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
