"""What all controllers have in common: stores, clock, identity, failpoints and events."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from gateway_core import failpoints
from gateway_core.api.account import GatewayAccount
from gateway_core.api.ids import IdMint, Ownership, name_to_id
from gateway_core.api.provider import GatewayProvider
from gateway_core.api.resource import Resource
from gateway_core.api.task import GatewayTask
from gateway_core.api.times import parse_time
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import KubernetesError
from gateway_core.providers.upstream import UpstreamDenied
from gateway_core.storage.objects import ObjectStore
from gateway_operator.metrics import Metrics
from gateway_operator.shards import Shards

NAMES = (
    "before-intent",
    "after-intent",
    "after-submit",
    "after-running",
    "before-outputs",
    "after-outputs",
    "after-terminal",
    "before-callback",
    "after-callback",
    "after-callback-record",
    "after-archive",
    "after-settle",
    "after-fold",
    "after-finalizer",
    "before-removal",
    "after-removal",
    "after-journal-fold",
    "before-journal-removal",
    "after-journal-removal",
    "after-key-secret",
    "before-batch-start",
    "after-batch-start",
    "before-batch-checkpoint",
    "after-batch-checkpoint",
    "before-batch-run-end",
    "after-batch-run-end",
    "after-batch-bytes",
    "after-batch-file",
    "before-batch-end",
    "after-batch-end",
    "after-batch-settle",
    "after-batch-fold",
    "after-batch-removal",
    "after-batch-finalizer",
    "after-file-release",
    "after-file-bytes",
    "after-file-upload",
    "after-file-finalizer",
    "after-upload-outcome",
    "after-upload-file",
    "after-upload-move",
    "after-upload-parts",
    "after-upload-finalizer",
    "after-upload-settled",
    "before-orphan-removal",
)


class Failpoints(failpoints.Failpoints):
    """The operator's failpoints."""

    names = NAMES


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


@dataclass(slots=True)
class Context:
    """Passed to each controller. `now` returns the aware time of day by the API server's clock."""

    kube: KubernetesClient
    store: ObjectStore
    shards: Shards
    mint: IdMint
    failpoints: Failpoints
    metrics: Metrics
    now: Callable[[], datetime]
    events: AdminEvents = field(init=False)

    def __post_init__(self) -> None:
        self.events = AdminEvents(self.kube)

    def is_minted(self, prefix: str, name: str, account: str) -> bool:
        """Whether the API has made an object's name for the account: only it can make the tag."""
        return self.mint.check(prefix, account, name_to_id(name)) is Ownership.MINTED

    def age(self, resource: Resource) -> float:
        """Seconds since the resource was created."""
        return self.seconds_since(resource.metadata.creation_timestamp)

    def seconds_since(self, time: str | None) -> float:
        """Seconds since an RFC 3339 time."""
        return (self.now() - parse_time(time)).total_seconds()
