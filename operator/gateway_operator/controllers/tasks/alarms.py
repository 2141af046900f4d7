"""What an admin must act on: a provider that refuses the gateway's credentials."""

import time

from gateway_core.contract.provider import GatewayProvider
from gateway_core.contract.task import GatewayTask
from gateway_core.ports.records import RecordError, Records
from gateway_core.ports.upstream import UpstreamDenied

QUIET_SECONDS = 600.0


class Alarms:
    """Reports each provider at most once in ten minutes, as an Event on its object."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._last: dict[str, float] = {}

    async def report_denial(self, task: GatewayTask, error: UpstreamDenied) -> None:
        """Tells that the task's provider refuses the credentials; lost if the API is away."""
        if task.status.upstream is None:
            return
        provider = task.status.upstream.provider_name
        if time.monotonic() - self._last.get(provider, float("-inf")) < QUIET_SECONDS:
            return
        self._last[provider] = time.monotonic()
        try:
            obj = await self._records.get(GatewayProvider.plural, provider)
        except RecordError:
            return
        await self._records.report_event(obj, reason="CredentialsRefused", message=error.message)
