"""Providers driven by code of another package, found by its entry point.

The code runs on the operator's event loop, so it must not block. The gateway bounds the time of its
calls and checks what they return and raise.
"""

import asyncio
import re
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, TypeVar

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway_core.api.provider import ProviderSpec
from gateway_core.egress.addresses import AddressPolicy
from gateway_core.failures import describe_detail, describe_failure
from gateway_core.providers.http_answers import (
    FAILED,
    REFUSED,
    read_job_id,
    read_seconds,
    read_wait,
)
from gateway_core.providers.http_calls import SLOT_SECONDS, make_slots
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
    """Return the adapter's attributes. AdapterFailed where one is invalid."""
    try:
        traits = Traits.model_validate(adapter)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise AdapterFailed(f"the adapter's {first['loc'][0]} {describe_detail(first)}") from None
    if traits.guarantee is SubmissionGuarantee.LOOKUP and not traits.can_find:
        raise AdapterFailed("the adapter guarantees a look-up and has none")
    return traits


START_SECONDS = 10.0
CALL_SECONDS = 60.0
STALL_SECONDS = 60.0
"""Longest wait for the next bytes of an output."""
CLOSE_SECONDS = 5.0
_SUBMIT_MARGIN = 10.0
"""Seconds after the limit in which a request may still be on its way to the provider."""
_MOST_OUTPUTS, _MOST_REFERENCE = 16, 2048
_MOST_TEXT = 500
_KIND = re.compile(r"video/[a-z0-9.+-]{1,100}|application/octet-stream")
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
    """Upstream by an adapter of another package."""

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
        self._slots = make_slots(spec.max_concurrent_requests)
        self._adapter: Upstream | None = None
        self._submit_limit = 0.0
        self.resubmits_unknown = self._setup.resubmits_unknown

    async def start(self) -> None:
        """Load and start the adapter. ValueError, AdapterMissing, AdapterFailed."""
        # on a thread: to look through the installed packages, and to import one, reads files
        entry = await asyncio.to_thread(_find_entry, self._type)
        try:
            async with asyncio.timeout(START_SECONDS):
                factory = await asyncio.to_thread(entry.load)
                adapter: Upstream = factory(self._setup)
                await adapter.start()
            traits = read_traits(adapter)
        except ValueError as error:
            raise ValueError(self._hide(f"config: {describe_failure(error)}")) from None
        except AdapterFailed as error:
            raise AdapterFailed(self._hide(str(error))) from None
        except TimeoutError:
            text = f"the adapter {self._type} did not start within {START_SECONDS:g} s"
            raise AdapterFailed(text) from None
        except Exception as error:  # foreign code may raise anything
            raise AdapterFailed(f"the adapter {self._type} raised {_describe(error)}") from None
        self._adapter = adapter
        self.guarantee = traits.guarantee
        self.can_cancel, self.can_find = traits.can_cancel, traits.can_find
        self.max_output_bytes = traits.max_output_bytes
        self._submit_limit = traits.submit_seconds
        self.submit_seconds = traits.submit_seconds + SLOT_SECONDS + _SUBMIT_MARGIN
        self.poll_interval, self.notified_interval = traits.poll_interval, traits.notified_interval

    async def submit(self, job: JobInput) -> str:
        """Start a job; its id. UpstreamRejected, Busy, Denied, Unclear."""
        return read_job_id(await self._call(lambda a: a.submit(job), self._submit_limit))

    async def find(self, reference: str) -> str | None:
        """Return the id of the job submitted under `reference`, None if the provider has none."""
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
        adapter = self._get()
        async with AsyncExitStack() as stack:
            # the errors of opening and reading alone: those of the reader pass as they are
            with self._translate():
                async with asyncio.timeout(STALL_SECONDS):
                    download = await stack.enter_async_context(adapter.fetch(url))
                kind, chunks = download.content_type, aiter(download.chunks)
            if not isinstance(kind, str) or not _KIND.fullmatch(kind):
                raise UpstreamUnclear("The output is not a video.")
            yield Download(kind, self._read(chunks))

    async def close(self) -> None:
        """Close the adapter."""
        adapter, self._adapter = self._adapter, None
        if adapter is None:
            return
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await adapter.close()
        except Exception as error:
            _log.warning("adapter not closed", type=self._type, error=type(error).__name__)

    def _get(self) -> Upstream:
        if self._adapter is None:
            raise UpstreamBusy("The provider is being reconfigured.")
        return self._adapter

    async def _call(self, work: Callable[[Upstream], Awaitable[T]], seconds: float) -> T:
        async with self._slots.take(None):
            adapter = self._get()
            with self._translate():
                async with asyncio.timeout(seconds):
                    return await work(adapter)

    async def _read(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        read = 0
        while True:
            with self._translate():
                async with asyncio.timeout(STALL_SECONDS):
                    piece = await anext(chunks, None)
            if piece is None:
                break
            if not isinstance(piece, bytes):
                raise UpstreamUnclear("The output is not made of bytes.")
            read += len(piece)
            yield piece
        if not read:
            raise UpstreamUnclear("The output is empty.")

    @contextmanager
    def _translate(self) -> Iterator[None]:
        """Raise the UpstreamError that an exception of the adapter stands for, its text redacted.

        Any other exception leaves unknown whether the call took effect: UpstreamUnclear.
        """
        try:
            yield
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # a future that the adapter awaited was cancelled, not this call
            raise UpstreamUnclear("The provider's adapter failed.") from None
        except TimeoutError:
            raise UpstreamUnclear("The provider's adapter did not answer in time.") from None
        except Exception as error:
            kind = next((kind for kind in _ERRORS if isinstance(error, kind)), None)
            if kind is None or not isinstance(error, UpstreamError):
                _log.warning("adapter failed", type=self._type, error=_describe(error))
                raise UpstreamUnclear("The provider's adapter failed.") from None
            text = self._cleaner.clean(error.message, REFUSED)
            raise kind(text, retry_after=read_wait(error.retry_after)) from None

    def _hide(self, text: str) -> str:
        return (text.replace(self._secret, "[removed]") if self._secret else text)[:_MOST_TEXT]

    def _check_report(self, report: Any, job_id: str) -> JobReport:
        """Return the report, checked. UpstreamUnclear where it is invalid."""
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
    """Return names of the adapters that installed packages offer."""
    return sorted({entry.name for entry in metadata.entry_points(group=GROUP)})


def _find_entry(name: str) -> metadata.EntryPoint:
    entries = [entry for entry in metadata.entry_points(group=GROUP) if entry.name == name]
    if not entries:
        known = ", ".join(["http", *list_types()])
        raise AdapterMissing(f"type: no adapter is called {name!r}; there is {known}")
    if len({entry.value for entry in entries}) > 1:
        raise AdapterMissing(f"type: more than one package offers an adapter called {name!r}")
    return entries[0]


def _describe(error: Exception) -> str:
    """Return type and line of an exception: its text may contain a credential."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return type(error).__name__ + where


def _read_references(values: Any) -> tuple[str, ...]:
    """References for `fetch`: 1 to 16 texts of the adapter's own."""
    found = tuple(values) if isinstance(values, list | tuple) else ()
    if not 0 < len(found) <= _MOST_OUTPUTS:
        raise UpstreamUnclear("The provider's answer is contradictory: it ended without outputs.")
    for value in found:
        if not isinstance(value, str) or not 0 < len(value) <= _MOST_REFERENCE:
            raise UpstreamUnclear("The provider's answer is contradictory: an output has no name.")
    return found
