"""Kubernetes Events about what an admin must act on.

A provider that refuses the gateway's credentials, an account whose callbacks cannot be signed.
"""

import time

from gateway_core.api.account import GatewayAccount
from gateway_core.api.provider import GatewayProvider
from gateway_core.api.task import GatewayTask
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import KubernetesError
from gateway_core.providers.upstream import UpstreamDenied

QUIET_SECONDS = 600.0


class AdminEvents:
    """Reports on an object at most once in ten minutes. Lost if the API server is away."""

    def __init__(self, kube: KubernetesClient) -> None:
        self._kube = kube
        self._last: dict[tuple[str, str], float] = {}

    async def report_denial(self, task: GatewayTask, error: UpstreamDenied) -> None:
        """Report that the task's provider refuses the credentials."""
        if task.status.upstream is not None:
            await self.report_refusal(task.status.upstream.provider_name, error)

    async def report_refusal(self, provider: str, error: UpstreamDenied) -> None:
        """Report that a provider refuses the credentials."""
        await self._report(GatewayProvider.plural, provider, "CredentialsRefused", error.message)

    async def report_missing_key(self, task: GatewayTask, problem: str) -> None:
        """Report that callbacks of the task's account wait for a signing secret."""
        account = task.spec.request.account_name
        text = f"callbacks are waiting: {problem}"
        await self._report(GatewayAccount.plural, account, "WebhookSecretMissing", text)

    async def _report(self, plural: str, name: str, reason: str, message: str) -> None:
        now = time.monotonic()
        if now - self._last.get((plural, name), float("-inf")) < QUIET_SECONDS:
            return
        self._last[plural, name] = now
        try:
            obj = await self._kube.get(plural, name)
        except KubernetesError:
            return
        await self._kube.report_event(obj, reason=reason, message=message)
