"""Interfaces of upstream providers, of moderation providers and of code adapters."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from gateway_core.egress.addresses import AddressPolicy


class UpstreamError(Exception):
    """Base of the errors below. Their texts have no address, credential or id of the provider."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after


class UpstreamRejected(UpstreamError):
    """The provider rejected the input for good; no job was created."""


class UpstreamBusy(UpstreamError):
    """No job was created; retry after `retry_after` seconds (429, 503, refused connection)."""


class UpstreamLimited(UpstreamBusy):
    """The provider's rate limit (429)."""


class UpstreamUnreachable(UpstreamBusy):
    """No connection: the request was not sent."""


class UpstreamDenied(UpstreamError):
    """The provider rejects the gateway's credentials; no job was created. An admin must act."""


class UpstreamUnclear(UpstreamError):
    """Unknown whether a job was created (time-out, cut connection, 5xx, invalid response)."""


class UpstreamTimedOut(UpstreamUnclear):
    """The provider did not answer in time."""


class UpstreamSilent(UpstreamTimedOut):
    """The provider has read a call and said nothing in time, so it may be at work on it."""


class UpstreamInterrupted(UpstreamUnclear):
    """The response broke off after its head."""


class UpstreamGone(UpstreamError):
    """The provider does not know the job."""


class OutputRejected(UpstreamError):
    """The output's address or size is not allowed: a retry will not help."""


class JobState(Enum):
    """State of a job."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class JobInput:
    """Job to start: the task's validated input, and its uid as the reference.

    `notify_url` is an address that the provider may call when the job ends, which makes the gateway
    poll; None without push. `traceparent` is the call's place in a trace (W3C Trace Context); None
    unless providers shall know it.
    """

    reference: str
    upstream_model: str
    input: dict[str, Any]
    notify_url: str | None = None
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class JobReport:
    """Response to a poll: URLs of outputs, their seconds by the provider, and its retry-after."""

    state: JobState
    outputs: tuple[str, ...] = ()
    seconds: float | None = None
    message: str | None = None
    retry_after: float | None = None


class SubmissionGuarantee(Enum):
    """Means to resolve an unknown outcome of a submission."""

    IDEMPOTENCY_KEY = "key"  # submit again with the same key
    LOOKUP = "lookup"  # ask by reference
    NONE = "none"  # neither: the provider's declared policy decides


@dataclass(frozen=True, slots=True)
class Download:
    """An output being read."""

    content_type: str
    chunks: AsyncIterator[bytes]


class Upstream(Protocol):
    """One provider as its resource declares it. Values here are the defaults of adapters."""

    guarantee: SubmissionGuarantee
    can_cancel: bool = False
    can_find: bool = False
    max_output_bytes: int = 2 * 2**30
    submit_seconds: float  # after so long no attempt to submit is under way or unseen by `find`
    resubmits_unknown: bool = False  # the declared policy where there is no guarantee
    poll_interval: tuple[float, float] = (1.0, 15.0)  # least and most seconds between polls
    notified_interval: float | None = None  # the same for jobs with a notify_url, if declared

    async def start(self) -> None:
        """Called once, before any other call.

        Raises:
            ValueError: the declaration is invalid; the text says what to correct.
            AdapterMissing, AdapterFailed: of code adapters.
        """
        return None

    async def submit(self, job: JobInput) -> str:
        """Start a job; its id. UpstreamRejected, Busy, Denied, Unclear.

        With a guarantee of IDEMPOTENCY_KEY, safe to repeat for the same reference.
        """
        ...

    async def find(self, reference: str) -> str | None:
        """Return the id of the job submitted under `reference`, None if the provider has none."""
        ...

    async def poll(self, job_id: str) -> JobReport:
        """State of a job. UpstreamGone, Busy, Denied, Unclear."""
        ...

    async def cancel(self, job_id: str) -> None:
        """Stop a job; no error where it has ended or is unknown. Busy, Denied, Unclear."""
        ...

    def fetch(self, url: str) -> AbstractAsyncContextManager[Download]:
        """Open an output for reading. OutputRejected, UpstreamGone, Busy, Unclear."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...


GROUP = "model_gateway.upstreams"


@dataclass(frozen=True, slots=True)
class AdapterSetup:
    """Argument of an adapter's factory, which returns the `Upstream` of one resource.

    The factory does no I/O before `start`. It raises ValueError where config or credential are
    invalid; an admin reads the text, which says what to correct, in the `Ready` condition. Its
    `Upstream` runs on the operator's event loop: blocking calls belong on threads of its own.
    `config` is `spec.config`, `credential` the Secret's value without surrounding white space, None
    where the resource names none. `addresses` is the policy for outputs. The gateway enforces
    `maxConcurrentRequests` itself.
    """

    config: str
    credential: str | None
    resubmits_unknown: bool
    addresses: AddressPolicy


class AdapterMissing(Exception):
    """No package, or more than one, offers an adapter of the type's name."""


class AdapterFailed(Exception):
    """The adapter could not be loaded or started. The text holds no secret."""


class ModerationUpstream(Protocol):
    """One provider as its resource declares it. Values here are the defaults of adapters."""

    @property
    def limit(self) -> int:
        """Concurrent calls; further ones wait."""
        ...

    async def start(self) -> None:
        """Called once, before any other call."""
        return None

    async def moderate(
        self, body: Mapping[str, Any], *, traceparent: str | None = None
    ) -> dict[str, Any]:
        """Return the provider's response to `body`, valid by `moderation.read_call`; sent once.

        `model` in the body is the provider's name of it, and is the response's. The response is
        complete by contract §6: one result for each text, all 13 categories.

        Raises:
            UpstreamRejected: the input is rejected for good.
            UpstreamLimited: 429.
            UpstreamBusy: 503, no connection, or no free slot.
            UpstreamDenied: the credentials are rejected.
            UpstreamTimedOut: no response in time.
            UpstreamUnclear: any other failure.
        """
        ...

    async def close(self) -> None:
        """Close connections."""
        ...
