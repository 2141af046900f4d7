"""Registry of providers: one adapter for each usable GatewayProvider."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import structlog

from gateway_core.api.conditions import Reason
from gateway_core.api.provider import GatewayProvider, ProviderSpec
from gateway_core.egress.addresses import AddressPolicy
from gateway_core.failures import describe_failure
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import KubernetesUnavailable, ObjectNotFound, RequestForbidden
from gateway_core.kube.informer import Cache
from gateway_core.providers.catalog import Problem
from gateway_core.providers.checks import check_provider
from gateway_core.providers.http import HttpUpstream
from gateway_core.providers.openai import OpenAIUpstream
from gateway_core.providers.plugins import CodeUpstream
from gateway_core.providers.upstream import (
    AdapterFailed,
    AdapterMissing,
    ModerationUpstream,
    Upstream,
)

OPENAI = "openai"
DIRECT_TYPES = (OPENAI, "google")
"""Types whose providers answer calls at once: the API calls them itself."""


def build_upstream(
    spec: ProviderSpec, credential: bytes | str | None, policy: AddressPolicy
) -> Upstream:
    """Return the upstream of a resource; no I/O happens before its start.

    Raises ValueError, saying what to correct, for an invalid resource or credential. An unknown
    type fails at the start.
    """
    if spec.type in DIRECT_TYPES:
        raise ValueError(f"a provider of type {spec.type} has no jobs: it serves no tasks")
    kind = HttpUpstream if spec.type == "http" else CodeUpstream
    return kind(spec, credential, policy)


def build_moderation(spec: ProviderSpec, credential: bytes | str | None) -> ModerationUpstream:
    """Return the moderation upstream of a resource; ValueError as above, also for another type."""
    if spec.type != OPENAI:
        raise ValueError(f"a provider of type {spec.type} serves no moderations")
    return OpenAIUpstream(spec, credential)


SECRET_SECONDS = 30.0
RETRY_SECONDS = 3.0
START_PAUSE = 5.0
LONGEST_START_PAUSE = 300.0

_log = structlog.get_logger(__name__)


class Adapter(Protocol):
    """What all adapters have in common."""

    async def start(self) -> None:
        """Called once; raises as `Upstream.start`."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...


U = TypeVar("U", bound=Adapter)


def check_declaration(spec: ProviderSpec) -> Problem | None:
    """Problem of a resource by itself."""
    problems = check_provider(spec)
    if not problems:
        return None
    return Problem(problems[0].reason, "; ".join(problem.text for problem in problems))


@dataclass(slots=True)
class _Entry(Generic[U]):
    spec: ProviderSpec
    credential: str | None
    upstream: U | None
    problem: Problem | None
    read_at: float
    pause: float = START_PAUSE
    """Seconds from a failed start to the next."""
    start_at: float = float("inf")
    """Time of the next start after a failed one."""


class Providers(Generic[U]):
    """Upstreams by provider name.

    `build` raises ValueError, saying what to correct, for an invalid type or credential. `reading`
    tells an admin where the installation grants this process the right to read a Secret.
    """

    def __init__(
        self,
        table: Cache[GatewayProvider],
        kube: KubernetesClient,
        build: Callable[[ProviderSpec, str | None], U],
        check: Callable[[ProviderSpec], Problem | None] = check_declaration,
        *,
        reading: str = "the chart's value operator.secretNames, or set operator.readAnySecret",
    ) -> None:
        self.table = table
        self._kube = kube
        self._build = build
        self._check = check
        self._reading = reading
        self._entries: dict[str, _Entry[U]] = {}
        self._last_usable: dict[str, _Entry[U]] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._replaced: list[U] = []
        self._closing: set[asyncio.Task[None]] = set()

    def find_known(self, name: str) -> U | None:
        """Return the provider's upstream if it is known and current; else ask `find`."""
        known, obj = self._entries.get(name), self.table.get(name)
        if known is None or obj is None or known.spec is not obj.spec or not _is_fresh(known):
            return None
        return known.upstream

    async def find(self, name: str) -> U | None:
        """Return the provider's upstream; None where it does not exist or is unusable.

        Raises KubernetesUnavailable where its Secret cannot be read now.
        """
        entry = await self._refresh(name)
        return None if entry is None else entry.upstream

    async def recall(self, name: str) -> U | None:
        """Return the provider's upstream, or as it was last usable: to stop jobs that run there.

        The provider or its Secret may be deleted before the tasks that need them. None where this
        process has never used it. Raises as `find`.
        """
        upstream = await self.find(name)
        last = self._last_usable.get(name)
        return upstream if upstream is not None or last is None else last.upstream

    def peek(self, name: str) -> U | None:
        """Return the provider's upstream as it was found last, None without one; reads nothing."""
        entry = self._entries.get(name)
        return None if entry is None else entry.upstream

    async def check(self, name: str) -> Problem | None:
        """Why the provider is unusable; None where it is usable."""
        entry = await self._refresh(name)
        if entry is None:
            return Problem(Reason.PROVIDER_NOT_FOUND, f"no GatewayProvider is called {name}")
        return entry.problem

    async def close(self) -> None:
        """Close all upstreams, also those replaced a moment ago."""
        entries = *self._entries.values(), *self._last_usable.values()
        used = [entry.upstream for entry in entries if entry.upstream is not None]
        replaced, self._replaced = self._replaced, []
        for upstream in used + replaced:
            await upstream.close()
        await asyncio.gather(*self._closing, return_exceptions=True)

    async def _refresh(self, name: str) -> _Entry[U] | None:
        obj = self.table.get(name)
        known = self._entries.get(name)
        if obj is None:
            self._replace(name, None)
            return None
        fresh = known is not None and _is_fresh(known)
        # compared by identity first: every poll comes here, and comparing specs is slow
        if known is not None and fresh and (known.spec is obj.spec or known.spec == obj.spec):
            known.spec = obj.spec
            return known
        async with self._locks.setdefault(name, asyncio.Lock()):
            known = self._entries.get(name)
            fresh = known is not None and _is_fresh(known)
            if known is not None and fresh and known.spec == obj.spec:
                return known
            try:
                credential, problem = await self._read_credential(obj.spec)
            except KubernetesUnavailable:
                if known is None or known.spec != obj.spec:
                    raise
                # while the API is away the known upstream stays in use, without a read at each call
                now = time.monotonic()
                known.read_at = now - SECRET_SECONDS + RETRY_SECONDS
                known.start_at = max(known.start_at, now + RETRY_SECONDS)
                return known
            pause = START_PAUSE
            if known is not None and known.spec == obj.spec and known.credential == credential:
                if time.monotonic() < known.start_at:
                    known.read_at, known.problem = time.monotonic(), problem or known.problem
                    return known
                pause = min(LONGEST_START_PAUSE, 2 * known.pause)
            upstream = None
            if problem is None:
                upstream, problem = await self._make(obj.spec, credential)
            entry = _Entry(obj.spec, credential, upstream, problem, time.monotonic())
            if problem is not None and problem.reason is Reason.ADAPTER_FAILED:
                entry.pause, entry.start_at = pause, time.monotonic() + pause
            self._replace(name, entry)
        return entry

    async def _make(
        self, spec: ProviderSpec, credential: str | None
    ) -> tuple[U | None, Problem | None]:
        """Return the upstream, or the problem that prevents it.

        An unexpected exception is a problem of the resource too: it must not end the operator.
        """
        try:
            problem = self._check(spec)
            if problem:
                return None, problem
            upstream = self._build(spec, credential)
            await upstream.start()
        except AdapterMissing as error:
            return None, Problem(Reason.ADAPTER_NOT_FOUND, str(error))
        except AdapterFailed as error:
            return None, Problem(Reason.ADAPTER_FAILED, str(error))
        except ValueError as error:
            return None, Problem(Reason.INVALID_FIELD, describe_failure(error))
        except Exception:  # a resource must not bring the process down
            _log.exception("a provider cannot be used")
            return None, Problem(
                Reason.INVALID_FIELD, "the provider cannot be used: the log has the error"
            )
        return upstream, None

    async def _read_credential(self, spec: ProviderSpec) -> tuple[str | None, Problem | None]:
        ref = spec.credentials_secret_ref
        if ref is None:
            return None, None
        try:
            data = await self._kube.read_secret(ref.name)
        except ObjectNotFound:
            data = {}
        except RequestForbidden:
            text = f"RBAC lacks get of Secret {ref.name}: name it in {self._reading}"
            return None, Problem(Reason.SECRET_FORBIDDEN, text)
        value = data.get(ref.key)
        if not value:
            text = f"Secret {ref.name} must hold a value for key {ref.key}"
            return None, Problem(Reason.SECRET_NOT_FOUND, text)
        return value.decode(errors="replace").strip(), None

    def _replace(self, name: str, entry: _Entry[U] | None) -> None:
        """Keep the entry in place of the former; the last usable one stays open (`recall`)."""
        former = self._entries.pop(name, None)
        if entry is not None:
            self._entries[name] = entry
        if entry is not None and entry.upstream is not None:
            self._retire(former)
            self._retire(self._last_usable.pop(name, None))
        elif former is not None and former.upstream is not None:
            self._last_usable[name] = former

    def _retire(self, entry: _Entry[U] | None) -> None:
        """Close a replaced upstream once calls under way have had time to end."""
        if entry is None or entry.upstream is None:
            return
        declared = entry.spec.http or entry.spec.openai or entry.spec.google
        grace = declared.request_timeout_seconds + 60 if declared else 60
        self._replaced.append(entry.upstream)
        asyncio.get_running_loop().call_later(grace, self._close_soon, entry.upstream)

    def _close_soon(self, upstream: U) -> None:
        if upstream not in self._replaced:
            return
        self._replaced.remove(upstream)
        task = asyncio.create_task(upstream.close())
        # the loop holds only a weak reference to the task
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _is_fresh(entry: _Entry[Any]) -> bool:
    """Return whether nothing has to be read or started again."""
    now = time.monotonic()
    return now - entry.read_at < SECRET_SECONDS and now < entry.start_at
