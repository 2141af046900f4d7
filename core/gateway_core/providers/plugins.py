"""Providers driven by code of another package, found by its entry point."""

import asyncio
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

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
    count_stuck,
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

Interval = Annotated[float, Field(ge=0.5, le=3600)]


class Traits(BaseModel):
    """Attributes of an adapter, checked."""

    model_config = ConfigDict(from_attributes=True)

    guarantee: Annotated[SubmissionGuarantee, Field(strict=True)]
    can_cancel: bool
    can_find: bool
    max_output_bytes: Annotated[int, Field(ge=1, le=2**40)]
    submit_seconds: Annotated[float, Field(ge=1, le=600)]
    poll_interval: tuple[Interval, Interval]
    notified_interval: Interval | None


def read_traits(adapter: Upstream) -> Traits:
    """The adapter's attributes. AdapterFailed where one is invalid."""
    try:
        traits = Traits.model_validate(adapter)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise AdapterFailed(f"the adapter's {first['loc'][0]}: {first['msg']}") from None
    if traits.guarantee is SubmissionGuarantee.LOOKUP and not traits.can_find:
        raise AdapterFailed("the adapter guarantees a look-up and has none")
    return traits


PATIENCE_SECONDS = 5.0
START_SECONDS = 10.0
CALL_SECONDS = 60.0
CLOSE_SECONDS = 5.0
_TURN_SECONDS = 10.0
_SUBMIT_MARGIN = 10.0
"""Seconds after the limit in which a request may still be on its way to the provider."""
_MOST_OUTPUTS, _MOST_REFERENCE = 16, 2048
_MOST_TEXT = 500
_MOST_STUCK = 8
"""Abandoned threads of a type that are still blocked; with so many no other is started."""
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
    """Upstream by an adapter of another package, on a thread of its own."""

    def __init__(
        self, spec: ProviderSpec, credential: bytes | str | None, policy: AddressPolicy
    ) -> None:
        if isinstance(credential, bytes):
            credential = credential.decode(errors="replace")
        secret = (credential or "").strip() or None
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
        """Why the provider cannot be used at present: the adapter blocks its thread."""
        stuck = self._isolation is not None and self._isolation.is_stuck
        return f"the adapter {self._type} blocks its thread" if stuck else None

    async def start(self) -> None:
        """Load and start the adapter. ValueError, AdapterMissing, AdapterFailed."""
        entry = await asyncio.to_thread(_find_entry, self._type)
        name = f"adapter {self._type}"
        if (stuck := count_stuck(name)) >= _MOST_STUCK:
            raise AdapterFailed(f"the adapter {self._type} still blocks {stuck} threads")
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
        # a call may wait for its slot and for the thread before it begins
        waits = _TURN_SECONDS + PATIENCE_SECONDS + _SUBMIT_MARGIN
        self.submit_seconds = traits.submit_seconds + waits
        self.poll_interval, self.notified_interval = traits.poll_interval, traits.notified_interval

    async def submit(self, job: JobInput) -> str:
        """Start a job; its id. UpstreamRejected, Busy, Denied, Unclear."""
        return read_job_id(await self._call(lambda a: a.submit(job), self._submit_limit))

    async def find(self, reference: str) -> str | None:
        """The id of the job submitted under `reference`, None if the provider has none."""
        found = await self._call(lambda a: a.find(reference), CALL_SECONDS)
        return None if found is None else read_job_id(found)

    async def poll(self, job_id: str) -> JobReport:
        """State of a job. UpstreamGone, Busy, Denied, Unclear."""
        return self._check_report(await self._call(lambda a: a.poll(job_id), CALL_SECONDS), job_id)

    async def cancel(self, job_id: str) -> None:
        """Stop a job; no error where it has ended or is unknown. Busy, Denied, Unclear."""
        await self._call(lambda a: a.cancel(job_id), CALL_SECONDS)

    @asynccontextmanager
    async def fetch(self, url: str) -> AsyncIterator[Download]:
        """Open an output for reading. OutputRejected, UpstreamGone, Busy, Unclear."""
        adapter, isolation = self._get()
        try:
            async with read_download(isolation, lambda: adapter.fetch(url)) as download:
                yield download
        except Crashed as error:
            self._explain(error)

    async def close(self) -> None:
        """Close the adapter and end its thread."""
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
        """Raise the UpstreamError that `error` stands for, its text redacted."""
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
        """Raise ValueError or AdapterFailed, without the credential."""
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
        """The report, checked. UpstreamUnclear where it is invalid."""
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
    """Names of the adapters that installed packages offer."""
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
    """Type and line of an exception: its text may contain a credential."""
    frames = traceback.extract_tb(error.__traceback__) if error else []
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return type(error).__name__ + where


async def _load(entry: metadata.EntryPoint, setup: AdapterSetup) -> tuple[Upstream, Traits]:
    """Import the package and start its adapter; all of it foreign code."""
    adapter: Upstream = entry.load()(setup)
    await adapter.start()
    return adapter, read_traits(adapter)


def _read_references(values: Any) -> tuple[str, ...]:
    """References for `fetch`: 1 to 16 texts of the adapter's own."""
    found = tuple(values) if isinstance(values, list | tuple) else ()
    if not 0 < len(found) <= _MOST_OUTPUTS:
        raise UpstreamUnclear("The provider's answer is contradictory: it ended without outputs.")
    for value in found:
        if not isinstance(value, str) or not 0 < len(value) <= _MOST_REFERENCE:
            raise UpstreamUnclear("The provider's answer is contradictory: an output has no name.")
    return found
