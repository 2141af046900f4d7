"""One provider of LLM calls: its address, credentials in turn, circuit breaker and slots."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Literal
from urllib.parse import urlsplit

from gateway_core.api.provider import DirectProvider, ProviderSpec
from gateway_core.fair_semaphore import FairSemaphore
from gateway_core.kube.clock import CLOCK
from gateway_core.llm.client import Client
from gateway_core.llm.connection import Timeouts
from gateway_core.llm.formats import provider_json
from gateway_core.llm.formats.calls import InvalidAnswer
from gateway_core.llm.formats.failures import ReportedError, find_error, read_error
from gateway_core.llm.formats.sse import StreamBroken, StreamFailed
from gateway_core.llm.response import Response
from gateway_core.llm.routing import CircuitBreaker, CredentialRing, Pace
from gateway_core.providers.checks import check_provider
from gateway_core.providers.http_answers import (
    REFUSED,
    USUAL_WAIT,
    Answer,
    find_call_error,
    limit_wait,
    make_denied,
    read_retry_after,
)
from gateway_core.providers.http_calls import decode_credential, fill_headers
from gateway_core.providers.redaction import MessageCleaner, concerns_account
from gateway_core.providers.upstream import (
    UpstreamBusy,
    UpstreamDenied,
    UpstreamError,
    UpstreamLimited,
    UpstreamRejected,
    UpstreamUnclear,
)

Dialect = Literal["openai", "google"]

SLOT_SECONDS = 10.0
"""How long a call waits for one of the provider's slots."""
DENIED_SECONDS = 60.0
"""How long a credential that the provider has refused is left out."""
LIMITED_SECONDS = 1.0
"""The same for a rate limit without a Retry-After, which may concern a single request."""
MOST_ERROR_BYTES = 64 * 1024
_TOO_MANY = "The provider is sent more calls than it takes."
MOST_HEADS = 256
"""Prepared heads kept: one for each path and credential."""


def split_credentials(credential: bytes | str | None) -> list[str | None]:
    """Return the credentials of a Secret's value, one on each line; [None] without any."""
    lines = (decode_credential(credential) or "").splitlines()
    return [line.strip() for line in lines if line.strip()] or [None]


class SentCall:
    """A call that the provider answers with 2xx: read `response`, then call `close`.

    `has_outcome`: its success or failure is noted. Without either, as when its client leaves, it
    says nothing about the provider. `began` and `number` are its time and its credential.
    """

    __slots__ = ("_upstream", "account", "began", "has_outcome", "number", "response")

    def __init__(
        self, upstream: "LlmUpstream", response: Response, account: str, began: float, number: int
    ) -> None:
        self.response = response
        self.account = account
        self.began = began
        self.number = number
        self.has_outcome = False
        self._upstream: LlmUpstream | None = upstream

    def close(self) -> None:
        """End the call; the connection is closed unless the response was read whole. Repeatable."""
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            self.response.abort()
            upstream.release(self)


class LlmUpstream:
    """Sends LLM calls to the provider of a resource of type openai or google.

    Raises ValueError, saying what to correct, where the resource or a credential is invalid. For
    one event loop.
    """

    def __init__(self, spec: ProviderSpec, credential: bytes | str | None) -> None:
        problems = check_provider(spec)
        if problems:
            raise ValueError("; ".join(problem.text for problem in problems))
        declared: DirectProvider | None = spec.openai or spec.google
        if declared is None:
            raise ValueError(f"a provider of type {spec.type} serves no LLM calls")
        self.dialect: Dialect = "openai" if spec.openai else "google"
        self.has_responses = spec.openai is not None and spec.openai.has_responses
        secrets = split_credentials(credential)
        self._headers = [fill_direct_headers(self.dialect, declared, secret) for secret in secrets]
        limit = spec.max_concurrent_requests
        self._client = Client(
            declared.base_url,
            limit,
            timeouts=Timeouts(
                connect=declared.connect_timeout_seconds,
                head=declared.idle_timeout_seconds,
                idle=declared.idle_timeout_seconds,
            ),
        )
        self._slots = FairSemaphore(
            limit, per_holder=max(1, limit // 2), seconds=SLOT_SECONDS, error=_find_no_slot
        )
        self._breaker = CircuitBreaker()
        self._credentials = CredentialRing(len(secrets))
        rate = spec.requests_per_second
        self._pace = None if rate is None else Pace(rate)
        self._heads: dict[tuple[str, int], bytes] = {}
        address = urlsplit(declared.base_url)
        host = address.hostname or ""
        self.server = host, address.port or (443 if address.scheme == "https" else 80)
        """Host and port, for traces."""
        values = {
            value
            for headers in self._headers
            for name, value in headers.items()
            if name != "content-type"
        }
        self._cleaner = MessageCleaner((host,), filter(None, secrets), values)

    @property
    def credentials(self) -> int:
        """Number of its credentials, at least 1."""
        return len(self._headers)

    @property
    def is_open(self) -> bool:
        """Whether its circuit is open or half open."""
        return self._breaker.is_open

    @property
    def is_rested(self) -> bool:
        """Whether `count_rest` is 0, if that is known without the clock; the usual case."""
        return self._pace is None and self._breaker.is_rested and self._credentials.is_rested

    def count_rest(self) -> float:
        """Return seconds until a call may be sent, 0 if one may now."""
        now = time.monotonic()
        rest = max(self._breaker.count_rest(now), self._credentials.count_rest(now))
        return rest if self._pace is None else max(rest, self._pace.count_rest(now))

    def explain_rest(self) -> UpstreamError:
        """Return the error of a call that cannot be sent now."""
        now = time.monotonic()
        if self._pace is not None and self._pace.count_rest(now) > 0:
            return UpstreamLimited(_TOO_MANY, retry_after=self.count_rest())
        if self._credentials.count_rest(now) == 0:
            return UpstreamBusy("The provider fails.", retry_after=self.count_rest())
        if self._credentials.is_limited:
            return UpstreamLimited(_TOO_MANY, retry_after=self.count_rest())
        return UpstreamDenied("The provider has refused its credentials.")

    def may_try(self) -> bool:
        """Return whether a call with no other route may be sent, even to an open circuit."""
        now = time.monotonic()
        has_rate = self._pace is None or self._pace.count_rest(now) == 0
        return has_rate and self._breaker.may_try(now) and self._credentials.may_try(now)

    def clean(self, message: str, upstream_model: str) -> str:
        """Return a provider's message without addresses, credentials and ids (contract §1.3)."""
        return self._cleaner.clean(message, REFUSED, upstream_model)

    async def start(self) -> None:
        """Nothing: calls open connections."""

    async def close(self) -> None:
        """Close free connections, and others after their response."""
        self._client.close()

    async def send(
        self,
        path: str,
        body: bytes,
        *,
        account: str,
        upstream_model: str,
        note_sent: Callable[[], None],
        is_last: bool = False,
    ) -> SentCall:
        """POST a call; returns when the provider has answered 2xx.

        The account holds one of the provider's slots, of which it gets at most half, until the
        call is closed. `note_sent` is called just before the first byte is sent.
        `is_last`: no other provider can answer the call, so it is sent though the circuit is open.

        Raises:
            UpstreamRejected: the input is rejected for good.
            UpstreamBusy: nothing was sent, or the provider has no room.
            UpstreamError: any other failure; another provider may answer the call.
        """
        now = time.monotonic()
        if self._pace is not None and not self._pace.take(now):
            raise self.explain_rest()
        if not self._breaker.begin(now, is_last=is_last):
            raise self.explain_rest()
        number = self._credentials.take(now, is_last=is_last)
        if number is None:
            self._breaker.drop(now)
            raise self.explain_rest()
        try:
            await self._slots.wait(account)
        except BaseException:
            self._breaker.drop(now)
            raise
        try:
            response = await self._client.send(
                self._find_head(path, number), body, note_sent=note_sent
            )
            if not 200 <= response.status < 300:
                await self._check(response, number, upstream_model)
        except BaseException as error:
            self._slots.release(account)
            self._note(error, account, now)
            raise
        self._breaker.hear(now)
        self._credentials.restore(number)
        return SentCall(self, response, account, now, number)

    def note_success(self, sent: SentCall) -> None:
        """Note that a call got output."""
        sent.has_outcome = True
        self._breaker.succeed(sent.account, time.monotonic())

    def note_failure(
        self,
        sent: SentCall,
        error: UpstreamError | StreamFailed | InvalidAnswer,
        upstream_model: str,
    ) -> UpstreamError:
        """Note the failure of a call after its head, and return it as an error of a provider."""
        # what is not of the format, or of no use, may be the request's doing
        counts = True
        if isinstance(error, ReportedError):
            failure = self._judge(error, sent.number, upstream_model)
            counts = not error.is_model
        elif isinstance(error, UpstreamError):
            failure = error
        else:
            failure = UpstreamUnclear("The provider's response cannot be read.")
            counts = isinstance(error, StreamBroken) and not sent.has_outcome
        if counts:
            sent.has_outcome = True
            self._note(failure, sent.account, sent.began)
        return failure

    def release(self, sent: SentCall) -> None:
        """Return the slot of a call that ends."""
        if not sent.has_outcome:
            self._breaker.drop(sent.began)
        self._slots.release(sent.account)

    def _find_head(self, path: str, number: int) -> bytes:
        head = self._heads.get((path, number))
        if head is None:
            if len(self._heads) >= MOST_HEADS:
                self._heads.clear()
            head = self._client.prepare("POST", path, self._headers[number])
            self._heads[path, number] = head
        return head

    async def _check(self, response: Response, number: int, upstream_model: str) -> None:
        """Raise the error of a response without success."""
        raw = b""
        try:
            with suppress(UpstreamUnclear):
                raw = await response.read(MOST_ERROR_BYTES)
        finally:
            response.abort()
        reported = _read_report(raw)
        reported.status = response.status
        reported.retry_after = (
            _read_retry_after(response)
            or reported.retry_after
            # it asks for some wait, in words that nobody can read
            or (USUAL_WAIT if b"retry-after" in response.headers else None)
        )
        raise self._judge(reported, number, upstream_model)

    def _judge(self, reported: ReportedError, number: int, upstream_model: str) -> UpstreamError:
        """Return the error that a provider reports; notes what caused it."""
        now, status = time.monotonic(), reported.status
        if reported.is_account or status == 401:
            # 402 and 403 may concern a single request
            self._credentials.rest(number, DENIED_SECONDS, now, limited=False)
            return make_denied(status or 402)
        if status is None:
            return UpstreamUnclear("The provider reported an error.")
        error = find_call_error(Answer(status, None, reported.retry_after))
        if isinstance(error, UpstreamLimited):
            seconds = error.retry_after or LIMITED_SECONDS
            self._credentials.rest(number, seconds, now, limited=True)
        elif isinstance(error, UpstreamBusy) and error.retry_after:
            self._breaker.pause(error.retry_after, now)
        if error is not None:
            return error
        if status == 404:
            # model and URL come from resources, so this is no error of the client
            return UpstreamDenied("The provider knows no such model or address (HTTP status 404).")
        if concerns_account(reported.message):
            return UpstreamDenied("The provider refuses the gateway's account.")
        return UpstreamRejected(self.clean(reported.message, upstream_model))

    def _note(self, error: BaseException, account: str, began: float) -> None:
        """Note the outcome of a call that failed before its response."""
        now = time.monotonic()
        if isinstance(error, UpstreamRejected):
            self._breaker.succeed(account, now)
        elif isinstance(error, UpstreamLimited | UpstreamDenied) or not isinstance(
            error, UpstreamError
        ):
            # the provider works: a credential or a route's model name does not, or the client left
            self._breaker.drop(began)
        else:
            self._breaker.fail(now, account)


def fill_direct_headers(
    dialect: Dialect, declared: DirectProvider, secret: str | None
) -> dict[str, str]:
    """Return the headers of calls with a credential. Raises TemplateError as `fill_header`."""
    headers = fill_headers(declared.headers, secret)
    if secret is not None:
        if dialect == "openai":
            headers.setdefault("authorization", f"Bearer {secret}")
        else:
            headers.setdefault("x-goog-api-key", secret)
    return {"content-type": "application/json", **headers}


def _read_report(raw: bytes) -> ReportedError:
    """Return the error in a response's body of either dialect; without a text if none is there."""
    try:
        document = provider_json.load(raw)
    except ValueError:
        document = None
    return find_error(document) or read_error(document)


def _read_retry_after(response: Response) -> float | None:
    """Return the seconds to wait by a response's header: milliseconds, seconds or a date."""
    headers = response.headers
    milliseconds = headers.get(b"retry-after-ms", b"")
    if milliseconds.isdigit():
        return limit_wait(float(milliseconds) / 1000)
    return read_retry_after(headers.get(b"retry-after", b"").decode("latin-1"), CLOCK.time())


def _find_no_slot() -> UpstreamBusy:
    return UpstreamBusy("Too many calls to the provider are under way.")
