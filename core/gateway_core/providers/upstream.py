"""Interfaces of upstream providers, of moderation providers and of code adapters."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from gateway_core.egress.addresses import AddressPolicy


class UpstreamError(Exception):
    """The base of all below. The text is clean: no address, credential or id of the provider."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after


class UpstreamRejected(UpstreamError):
    """The provider refused the input for good; no job was made."""


class UpstreamBusy(UpstreamError):
    """No job was made; try again after `retry_after` seconds (429, 503, refused connection)."""


class UpstreamLimited(UpstreamBusy):
    """The provider's own rate limit (429): it is sent more calls than it takes."""


class UpstreamDenied(UpstreamError):
    """The provider refuses the gateway's credentials; no job was made. An admin must act."""


class UpstreamUnclear(UpstreamError):
    """Whether a job was made is unknown (time-out, cut connection, 5xx, an answer of nonsense)."""


class UpstreamTimedOut(UpstreamUnclear):
    """The provider did not answer in time."""


class UpstreamGone(UpstreamError):
    """The provider does not know the job."""


class OutputRejected(UpstreamError):
    """The output's address or size is not allowed: trying again will not help."""


class JobState(Enum):
    """What a job is doing."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class JobInput:
    """What to start: the task's validated input, and the reference (its uid) to know it by.

    `notify_url` is an address that the provider may call when the job ends; a call to it makes the
    gateway poll, whatever it says. None where push is not set up. `traceparent` is the call's place
    in a trace (W3C Trace Context); None unless providers are to be told.
    """

    reference: str
    upstream_model: str
    input: dict[str, Any]
    notify_url: str | None = None
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class JobReport:
    """An answer to a poll. `outputs` are URLs; `seconds` what the provider says it made.

    `retry_after` is how many seconds the provider asks to be left alone.
    """

    state: JobState
    outputs: tuple[str, ...] = ()
    seconds: float | None = None
    message: str | None = None
    retry_after: float | None = None


class SubmissionGuarantee(Enum):
    """How an unknown outcome of a submission can be cleared up."""

    IDEMPOTENCY_KEY = "key"  # submit again with the same key
    LOOKUP = "lookup"  # ask by reference
    NONE = "none"  # neither: the provider's declared policy decides


@dataclass(frozen=True, slots=True)
class Download:
    """An output being read."""

    content_type: str
    chunks: AsyncIterator[bytes]


class Upstream(Protocol):
    """One provider as its resource declares it. What has a value here has it unless it differs."""

    guarantee: SubmissionGuarantee
    can_cancel: bool = False
    can_find: bool = False
    max_output_bytes: int = 2 * 2**30
    submit_seconds: float  # after so long no attempt to submit is under way or unseen by `find`
    resubmits_unknown: bool = False  # the declared policy where there is no guarantee
    poll_interval: tuple[float, float] = (1.0, 15.0)  # least and most seconds between polls
    notified_interval: float | None = None  # the same for jobs with a notify_url, if declared

    @property
    def trouble(self) -> str | None:
        """What keeps it from being used at present, for an admin; None if nothing does."""
        return None

    async def start(self) -> None:
        """Called once, before any other call.

        Raises ValueError, saying what to mend, for a declaration that cannot be used, and
        AdapterMissing and AdapterFailed where its code is foreign.
        """
        return None

    async def submit(self, job: JobInput) -> str:
        """Starts a job; its id. UpstreamRejected, Busy, Denied, Unclear.

        With a guarantee of IDEMPOTENCY_KEY, safe to repeat for the same reference.
        """
        ...

    async def find(self, reference: str) -> str | None:
        """The id of the job submitted under `reference`, None if the provider has none."""
        ...

    async def poll(self, job_id: str) -> JobReport:
        """What the job is doing. UpstreamGone, Busy, Denied, Unclear."""
        ...

    async def cancel(self, job_id: str) -> None:
        """Stops the job; a job that has ended or is unknown is no error. Busy, Denied, Unclear."""
        ...

    def fetch(self, url: str) -> AbstractAsyncContextManager[Download]:
        """Opens an output for reading. OutputRejected, UpstreamGone, Busy, Unclear."""
        ...

    async def close(self) -> None:
        """Frees connections."""
        ...


GROUP = "model_gateway.upstreams"


@dataclass(frozen=True, slots=True)
class AdapterSetup:
    """What a factory makes an adapter of.

    `config` is `spec.config` as it stands, `credential` the Secret's value without white space
    around it, None where the resource names none. `addresses` says where outputs may be fetched
    from. The gateway itself keeps to `maxConcurrentRequests`.
    """

    config: str
    credential: str | None
    resubmits_unknown: bool
    addresses: AddressPolicy


class AdapterFactory(Protocol):
    """Makes the adapter of one resource."""

    def __call__(self, setup: AdapterSetup) -> Upstream:
        """The adapter; no I/O happens before its `start`.

        Raises ValueError, saying what is to be mended, for a config or credential that cannot be
        used; an admin reads it in the resource's `Ready` condition.
        """
        ...


class AdapterMissing(Exception):
    """No package, or more than one, offers an adapter of the type's name."""


class AdapterFailed(Exception):
    """The adapter could not be loaded or started. The text holds no secret."""


class ModerationUpstream(Protocol):
    """One provider as its resource declares it. What has a value here has it unless it differs."""

    @property
    def trouble(self) -> str | None:
        """What keeps it from being used at present, for an admin; None if nothing does."""
        return None

    @property
    def limit(self) -> int:
        """Calls that it takes at a time; further ones wait for a turn."""
        ...

    async def start(self) -> None:
        """Called once, before any other call."""
        return None

    async def moderate(
        self, body: Mapping[str, Any], *, traceparent: str | None = None
    ) -> dict[str, Any]:
        """The provider's answer to `body`, in which `model` is what the provider calls it.

        The body is one that `domain.moderations.read_call` takes. The answer is well formed by §6:
        one result for each text, all 13 categories, what the provider leaves out made up; its
        `model` is that of the body. It asks once. Raises of `ports.upstream`: UpstreamRejected for
        an input that it refuses for good, UpstreamBusy (503, no connection, no turn;
        `retry_after`) and of these UpstreamLimited (429), UpstreamDenied for our credentials,
        UpstreamUnclear for all else (5xx, nonsense) and of these UpstreamTimedOut.
        """
        ...

    async def close(self) -> None:
        """Frees connections."""
        ...
