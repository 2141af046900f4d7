"""Providers driven by code of another package, found by its entry point."""

import asyncio
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import structlog

from gateway_core.api.provider import ProviderSpec
from gateway_core.egress.addresses import AddressPolicy
from gateway_core.providers.http_answers import (
    FAILED,
    REFUSED,
    read_job_id,
    read_seconds,
    read_wait,
)
from gateway_core.providers.plugin_thread import (
    Crashed,
    Isolation,
    NeverBegun,
    NeverEnded,
    count_left,
    read_download,
)
from gateway_core.providers.redaction import MessageCleaner
from gateway_core.providers.upstream import (
    GROUP,
    AdapterFailed,
    AdapterMissing,
    AdapterSetup,
    Download,
    JobInput,
    JobReport,
    JobState,
    OutputRejected,
    SubmissionGuarantee,
    Upstream,
    UpstreamBusy,
    UpstreamDenied,
    UpstreamError,
    UpstreamGone,
    UpstreamRejected,
    UpstreamUnclear,
)

_MOST_SUBMIT_SECONDS = 600.0
_INTERVALS = (0.5, 3600.0)


@dataclass(frozen=True, slots=True)
class Traits:
    """The attributes of `ports.upstream.Upstream`."""

    guarantee: SubmissionGuarantee
    can_cancel: bool
    can_find: bool
    max_output_bytes: int
    submit_seconds: float
    poll_interval: tuple[float, float]
    notified_interval: float | None


def read_traits(adapter: Upstream) -> Traits:
    """The traits. AdapterFailed for what cannot be so."""
    guarantee = adapter.guarantee
    if not isinstance(guarantee, SubmissionGuarantee):
        raise AdapterFailed("the adapter's guarantee is no SubmissionGuarantee")
    if guarantee is SubmissionGuarantee.LOOKUP and not adapter.can_find:
        raise AdapterFailed("the adapter guarantees a look-up and has none")
    least, most = adapter.poll_interval
    notified = adapter.notified_interval
    return Traits(
        guarantee=guarantee,
        can_cancel=bool(adapter.can_cancel),
        can_find=bool(adapter.can_find),
        max_output_bytes=int(_read("max_output_bytes", adapter.max_output_bytes, 1, 2**40)),
        submit_seconds=_read("submit_seconds", adapter.submit_seconds, 1, _MOST_SUBMIT_SECONDS),
        poll_interval=(
            _read("poll_interval", least, *_INTERVALS),
            _read("poll_interval", most, *_INTERVALS),
        ),
        notified_interval=None
        if notified is None
        else _read("notified_interval", notified, *_INTERVALS),
    )


def _read(name: str, value: Any, least: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise AdapterFailed(f"the adapter's {name} must be a number from {least:g} to {most:g}")
    return float(value)


PATIENCE_SECONDS = 5.0
START_SECONDS = 10.0
CALL_SECONDS = 60.0
CLOSE_SECONDS = 5.0
_TURN_SECONDS = 10.0
_SUBMIT_MARGIN = 10.0
"""Seconds beyond the limit in which a request may still be on its way to the provider."""
_MOST_OUTPUTS, _MOST_REFERENCE = 16, 2048
_MOST_TEXT = 500
_MOST_LEFT = 8
"""Threads of a type that were given up and hang still: with so many no other is begun."""
_ERRORS = (
    UpstreamRejected,
    UpstreamBusy,
    UpstreamDenied,
    UpstreamUnclear,
    UpstreamGone,
    OutputRejected,
)

T = TypeVar("T")
_log = structlog.get_logger(__name__)


class CodeUpstream(Upstream):
    """Fulfils `ports.upstream.Upstream` by an adapter of another package, once started."""

    def __init__(
        self, spec: ProviderSpec, credential: bytes | str | None, policy: AddressPolicy
    ) -> None:
        secret = (
            credential.decode(errors="replace") if isinstance(credential, bytes) else credential
        )
        secret = secret.strip() or None if secret else None
        self._type = spec.type
        self._setup = AdapterSetup(
            spec.config or "", secret, spec.on_unknown_submission == "Resubmit", policy
        )
        self._secret = secret
        self._cleaner = MessageCleaner((), [secret] if secret else ())
        self._turns = asyncio.Semaphore(spec.max_concurrent_requests)
        self._isolation: Isolation | None = None
        self._adapter: Upstream | None = None
        self._submit_limit = 0.0
        self.resubmits_unknown = self._setup.resubmits_unknown

    @property
    def trouble(self) -> str | None:
        """That the adapter blocks its thread, as long as it does."""
        stuck = self._isolation is not None and self._isolation.is_stuck
        return f"the adapter {self._type} blocks its thread" if stuck else None

    async def start(self) -> None:
        """Loads the adapter and starts it. ValueError, AdapterMissing, AdapterFailed."""
        entry = await asyncio.to_thread(_find_entry, self._type)
        name = f"adapter {self._type}"
        if (left := count_left(name)) >= _MOST_LEFT:
            raise AdapterFailed(f"the adapter {self._type} still blocks {left} threads")
        self._isolation = Isolation(name, PATIENCE_SECONDS)
        try:
            self._adapter, traits = await self._isolation.run(
                lambda: _load(entry, self._setup), START_SECONDS
            )
        except (NeverBegun, NeverEnded, Crashed) as error:
            await self._isolation.stop()
            self._explain_start(error)
        self.guarantee = traits.guarantee
        self.can_cancel, self.can_find = traits.can_cancel, traits.can_find
        self.max_output_bytes = traits.max_output_bytes
        self._submit_limit = traits.submit_seconds
        # an attempt may wait for its turn and for the thread before it begins
        waits = _TURN_SECONDS + PATIENCE_SECONDS + _SUBMIT_MARGIN
        self.submit_seconds = traits.submit_seconds + waits
        self.poll_interval, self.notified_interval = traits.poll_interval, traits.notified_interval

    async def submit(self, job: JobInput) -> str:
        """Starts a job; its id. UpstreamRejected, Busy, Denied, Unclear."""
        return read_job_id(await self._call(lambda a: a.submit(job), self._submit_limit))

    async def find(self, reference: str) -> str | None:
        """The id of the job submitted under `reference`, None if the provider has none."""
        found = await self._call(lambda a: a.find(reference), CALL_SECONDS)
        return None if found is None else read_job_id(found)

    async def poll(self, job_id: str) -> JobReport:
        """What the job is doing. UpstreamGone, Busy, Denied, Unclear."""
        return self._check_report(await self._call(lambda a: a.poll(job_id), CALL_SECONDS), job_id)

    async def cancel(self, job_id: str) -> None:
        """Stops the job; one that has ended or is unknown is no error. Busy, Denied, Unclear."""
        await self._call(lambda a: a.cancel(job_id), CALL_SECONDS)

    @asynccontextmanager
    async def fetch(self, url: str) -> AsyncIterator[Download]:
        """Opens an output for reading. OutputRejected, UpstreamGone, Busy, Unclear."""
        adapter, isolation = self._get()
        try:
            async with read_download(isolation, lambda: adapter.fetch(url)) as download:
                yield download
        except Crashed as error:
            self._explain(error)

    async def close(self) -> None:
        """Has the adapter free what it holds, and ends its thread."""
        isolation, adapter = self._isolation, self._adapter
        self._adapter = None
        if isolation is None or adapter is None:
            return
        try:
            await isolation.run(adapter.close, CLOSE_SECONDS)
        except Exception as error:
            _log.warning("adapter not closed", type=self._type, error=type(error).__name__)
        await isolation.stop()

    def _get(self) -> tuple[Upstream, Isolation]:
        if self._adapter is None or self._isolation is None:
            raise UpstreamBusy("The provider is being reconfigured.")
        return self._adapter, self._isolation

    async def _call(self, work: Callable[[Upstream], Awaitable[T]], seconds: float) -> T:
        try:
            async with asyncio.timeout(_TURN_SECONDS):
                await self._turns.acquire()
        except TimeoutError as error:
            raise UpstreamBusy("Too many calls to the provider are under way.") from error
        try:
            adapter, isolation = self._get()
            return await isolation.run(lambda: work(adapter), seconds)
        except (NeverBegun, NeverEnded, Crashed) as error:
            self._explain(error)
        finally:
            self._turns.release()

    def _explain(self, error: Exception) -> NoReturn:
        """Raises the error of the port that `error` means, its text cleaned."""
        told = error.__cause__
        if isinstance(told, UpstreamError) and type(told) in _ERRORS:
            text = self._cleaner.clean(told.message, REFUSED)
            raise type(told)(text, retry_after=read_wait(told.retry_after)) from None
        if isinstance(error, NeverBegun):
            raise UpstreamBusy("The provider's adapter is busy.", retry_after=PATIENCE_SECONDS)
        if isinstance(error, NeverEnded):
            raise UpstreamUnclear("The provider's adapter did not answer in time.")
        _log.warning("adapter failed", type=self._type, error=_describe(told))
        raise UpstreamUnclear("The provider's adapter failed.")

    def _explain_start(self, error: Exception) -> NoReturn:
        """Raises ValueError or AdapterFailed, without the credential."""
        told = error.__cause__ if isinstance(error, Crashed) else error
        if isinstance(told, ValueError):
            raise ValueError(self._hide(f"config: {told}")) from None  # noqa: TRY004 - foreign
        if isinstance(told, AdapterFailed):
            raise AdapterFailed(self._hide(str(told))) from None
        if isinstance(told, NeverBegun | NeverEnded):
            text = f"the adapter {self._type} did not start within {START_SECONDS:g} s"
            raise AdapterFailed(text) from None
        raise AdapterFailed(f"the adapter {self._type} raised {_describe(told)}") from None

    def _hide(self, text: str) -> str:
        return (text.replace(self._secret, "[removed]") if self._secret else text)[:_MOST_TEXT]

    def _check_report(self, report: Any, job_id: str) -> JobReport:
        """The report, its parts checked. UpstreamUnclear for what is none."""
        if not isinstance(report, JobReport) or not isinstance(report.state, JobState):
            raise UpstreamUnclear("The provider's adapter gave no report.")
        wait = read_wait(report.retry_after)
        if report.state is JobState.RUNNING:
            return JobReport(JobState.RUNNING, retry_after=wait)
        if report.state is JobState.SUCCEEDED:
            outputs = _read_references(report.outputs)
            return JobReport(report.state, outputs, read_seconds(report.seconds))
        return JobReport(report.state, message=self._cleaner.clean(report.message, FAILED, job_id))


def list_types() -> list[str]:
    """The names of the adapters that installed packages offer."""
    return sorted({entry.name for entry in metadata.entry_points(group=GROUP)})


def _find_entry(name: str) -> metadata.EntryPoint:
    entries = [entry for entry in metadata.entry_points(group=GROUP) if entry.name == name]
    if not entries:
        known = ", ".join(["http", *list_types()])
        raise AdapterMissing(f"type: no adapter is called {name!r}; there is {known}")
    if len({entry.value for entry in entries}) > 1:
        raise AdapterMissing(f"type: more than one package offers an adapter called {name!r}")
    return entries[0]


def _describe(error: BaseException | None) -> str:
    """What was raised, and where. Its text may hold anything, such as a header's credential."""
    frames = traceback.extract_tb(error.__traceback__) if error else []
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return type(error).__name__ + where


async def _load(entry: metadata.EntryPoint, setup: AdapterSetup) -> tuple[Upstream, Traits]:
    """Imports the package and makes the adapter; all of it foreign code."""
    adapter: Upstream = entry.load()(setup)
    await adapter.start()
    return adapter, read_traits(adapter)


def _read_references(values: Any) -> tuple[str, ...]:
    """What `fetch` takes: 1 to 16 texts of the adapter's own choice."""
    found = tuple(values) if isinstance(values, list | tuple) else ()
    if not 0 < len(found) <= _MOST_OUTPUTS:
        raise UpstreamUnclear("The provider's answer is contradictory: it ended without outputs.")
    for value in found:
        if not isinstance(value, str) or not 0 < len(value) <= _MOST_REFERENCE:
            raise UpstreamUnclear("The provider's answer is contradictory: an output has no name.")
    return found
