"""Kubernetes Events about the gateway's objects, for `kubectl describe`; posted by kopf.

Their number is bounded twice. An object has one Event of a reason in ten minutes, since a step that
waits is repeated every few seconds. The process posts `EVENTS_PER_SECOND` of each reason, after a
burst: of 10,000 tasks that fail alike an admin needs some, and Events cost CPU and space in etcd.
Each reason has a bucket of its own: tasks that wait for a provider hide no account that is unready.
An account has at most half of a reason's Events: its failures hide none of other accounts.

Events are lost while the API server is away, and when the process ends.
"""

import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from contextvars import Context as Variables
from contextvars import copy_context
from functools import lru_cache
from typing import Any, cast

import kopf

from gateway_core.api.account import GatewayAccount
from gateway_core.api.ids import API_VERSION
from gateway_core.api.provider import GatewayProvider
from gateway_core.api.resource import Object, Resource
from gateway_core.api.task import GatewayTask
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import KubernetesError
from gateway_core.providers.upstream import UpstreamDenied

QUIET_SECONDS = 600.0
MAX_REMEMBERED = 20_000
"""Objects and reasons of which the time of the last Event is known."""
EVENTS_PER_SECOND = 2.0
BURST = 100.0
ACCOUNT_SHARE = 0.5
MAX_ACCOUNTS = 4096
"""Accounts and reasons whose use of their share is known."""

NORMAL, WARNING = "Normal", "Warning"


Post = Callable[[Object, str, str, str], None]
"""Posts an Event about an object in the background: its type, reason and message."""
Key = tuple[str, str]
"""An object and a reason."""


class KopfPoster:
    """Posts through kopf, whose queue of Events is known in the context of its handlers only."""

    def __init__(self) -> None:
        self._variables: Variables | None = None

    def bind(self) -> None:
        """Post from now on; called by a handler of an event."""
        if self._variables is None:
            self._variables = copy_context()

    def __call__(self, obj: Object, kind: str, reason: str, message: str) -> None:
        """Queue the Event; it is lost before the first handler has run."""
        if self._variables is not None:
            body = cast(kopf.Body, obj)
            self._variables.run(kopf.event, body, type=kind, reason=reason, message=message)


class TokenBucket:
    """Allows a burst, and then so many a second."""

    def __init__(self, per_second: float, burst: float) -> None:
        self._per_second = per_second
        self._burst = self._tokens = burst
        self._filled_at = time.monotonic()

    def take(self) -> bool:
        """Take a token, if there is one."""
        now = time.monotonic()
        filled = self._tokens + (now - self._filled_at) * self._per_second
        self._tokens, self._filled_at = min(self._burst, filled), now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


class Events:
    """A poster of Events about objects, within their bounds."""

    def __init__(self, kube: KubernetesClient, post: Post) -> None:
        self._kube = kube
        self._post = post
        self._last: OrderedDict[Key, float] = OrderedDict()
        self._buckets = defaultdict[str, TokenBucket](lambda: TokenBucket(EVENTS_PER_SECOND, BURST))
        self._find_share = lru_cache(MAX_ACCOUNTS)(_make_share)

    def info(self, obj: Object, *, reason: str, message: str) -> None:
        """Report progress of an object."""
        self._report(obj, NORMAL, reason, message)

    def warn(self, obj: Object, *, reason: str, message: str) -> None:
        """Report what an admin may have to act on."""
        self._report(obj, WARNING, reason, message)

    def warn_resource(self, resource: Resource, *, reason: str, message: str) -> None:
        """Warn of an object of which only a projection is kept."""
        meta = resource.metadata
        head = {"apiVersion": API_VERSION, "kind": resource.kind_name}
        reference = {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid}
        self.warn({**head, "metadata": reference}, reason=reason, message=message)

    async def report_denial(self, task: GatewayTask, error: UpstreamDenied) -> None:
        """Report that the task's provider refuses the credentials."""
        if task.status.upstream is not None:
            await self.report_refusal(task.status.upstream.provider_name, error)

    async def report_refusal(self, provider: str, error: UpstreamDenied) -> None:
        """Report that a provider refuses the credentials."""
        await self._warn_by_name(
            GatewayProvider.plural, provider, "CredentialsRefused", error.message
        )

    async def report_missing_key(self, task: GatewayTask, problem: str) -> None:
        """Report that callbacks of the task's account wait for a signing secret."""
        account = task.spec.request.account_name
        text = f"callbacks are waiting: {problem}"
        await self._warn_by_name(GatewayAccount.plural, account, "WebhookSecretMissing", text)

    async def _warn_by_name(self, plural: str, name: str, reason: str, message: str) -> None:
        key = (f"{plural}/{name}", reason)
        if not self._is_due(key):
            return
        self._remember(key)
        try:
            obj = await self._kube.get(plural, name)
        except KubernetesError:
            return
        self.warn(obj, reason=reason, message=message)

    def _report(self, obj: Object, kind: str, reason: str, message: str) -> None:
        key = (_identify(obj["metadata"]), reason)
        if not self._is_due(key):
            return
        account = obj.get("spec", {}).get("request", {}).get("accountName")
        if account is not None and not self._find_share(account, reason).take():
            return
        if self._buckets[reason].take():
            self._remember(key)
            self._post(obj, kind, reason, message)

    def _is_due(self, key: Key) -> bool:
        return time.monotonic() - self._last.get(key, float("-inf")) >= QUIET_SECONDS

    def _remember(self, key: Key) -> None:
        self._last[key] = time.monotonic()
        self._last.move_to_end(key)
        if len(self._last) > MAX_REMEMBERED:
            self._last.popitem(last=False)


def _make_share(_account: str, _reason: str) -> TokenBucket:
    return TokenBucket(EVENTS_PER_SECOND * ACCOUNT_SHARE, BURST * ACCOUNT_SHARE)


def _identify(meta: Mapping[str, Any]) -> str:
    return str(meta.get("uid") or meta["name"])
