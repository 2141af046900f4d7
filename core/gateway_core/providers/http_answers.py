"""Meaning of a provider's responses: errors, values, and the job found by a look-up."""

import math
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Any

import orjson

from gateway_core.api.http_provider import ErrorWords, LookupRequest
from gateway_core.providers.templates import Expression, ExpressionError
from gateway_core.providers.upstream import (
    UpstreamBusy,
    UpstreamDenied,
    UpstreamError,
    UpstreamGone,
    UpstreamLimited,
    UpstreamRejected,
    UpstreamTimedOut,
    UpstreamUnclear,
)

MAX_JOB_ID = 512
MAX_URL = 2048
MAX_OUTPUTS = 16
_LEAST_WAIT, _MOST_WAIT, USUAL_WAIT = 1.0, 120.0, 5.0

REFUSED = "The provider refused the request."
FAILED = "The provider could not make the video."
_NONSENSE = "The provider answered with something else than it declares."


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole response. `body` is None where it was too long; `retry_after` is seconds."""

    status: int
    body: bytes | None
    retry_after: float | None

    @property
    def ok(self) -> bool:
        """Whether the call succeeded (2xx)."""
        return 200 <= self.status < 300

    def parse(self) -> Any:
        """Return the body as JSON. Raises UpstreamUnclear for anything else."""
        try:
            return orjson.loads(self.body or b"")
        except ValueError as error:
            raise UpstreamUnclear(_NONSENSE) from error


def parse_retry_after(value: str | None, now: float) -> float | None:
    """Return seconds to wait, from seconds or an HTTP date, within 1 to 120.

    Return None without the header.

    `now` is Unix seconds. A value that is neither counts as 5 (contract §1.3).
    """
    return None if value is None else read_retry_after(value, now) or USUAL_WAIT


def read_retry_after(value: str, now: float) -> float | None:
    """Return seconds to wait, as `parse_retry_after`; None for a value that is neither."""
    text = value.strip()
    try:
        seconds = float(text) if text[:1].isdigit() else _seconds_until(text, now)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return limit_wait(seconds)


def limit_wait(seconds: float) -> float:
    """Return seconds to wait, within 1 to 120."""
    return min(_MOST_WAIT, max(_LEAST_WAIT, seconds))


def read_wait(value: Any) -> float | None:
    """Return seconds to wait from a number in a body; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # an integer may be larger than a float
    value = min(value, _MOST_WAIT) if isinstance(value, int) else value
    return limit_wait(value) if math.isfinite(value) else None


def _seconds_until(date: str, now: float) -> float:
    moment = parsedate_to_datetime(date)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - now


def make_busy(retry_after: float | None) -> UpstreamBusy:
    """Return the error of a provider that accepts no more calls now."""
    return UpstreamBusy("The provider is busy.", retry_after=retry_after or USUAL_WAIT)


def find_call_error(answer: Answer) -> UpstreamError | None:
    """Error of a synchronous call; None for a 2xx and a rejected input (contract §1.3).

    Has a `retry_after` only where the provider sent one.
    """
    match answer.status:
        case 400 | 404 | 413 | 422:
            return None
        case 401 | 402 | 403:
            return make_denied(answer.status)
        case 429:
            return UpstreamLimited(
                "The provider is sent more calls than it takes.", retry_after=answer.retry_after
            )
        case 503:
            return UpstreamBusy("The provider is busy.", retry_after=answer.retry_after)
        case 408 | 504:
            return UpstreamTimedOut(
                "The provider did not answer in time.", retry_after=answer.retry_after
            )
        case status if answer.ok:
            return None
        case status:
            return make_unclear(status, answer.retry_after)


def make_unclear(status: int, retry_after: float | None) -> UpstreamUnclear:
    """Return the error of an inconclusive status."""
    text = f"The provider answered with HTTP status {status}."
    return UpstreamUnclear(text, retry_after=retry_after)


def find_submission_error(answer: Answer, *, keyed: bool) -> UpstreamError | None:
    """Error of a submission; None for a 2xx and a rejected input.

    A proxy may respond 502 to 504 after the provider accepted the job: only a 503 with Retry-After
    proves that it did not. With an idempotency key (`keyed`) a 409 means that the first submission
    is still running (draft-ietf-httpapi-idempotency-key-header, 2.7).
    """
    match answer.status:
        case 401 | 402 | 403:
            return make_denied(answer.status)
        case 429:
            return make_busy(answer.retry_after)
        case 503 if answer.retry_after is not None:
            return make_busy(answer.retry_after)
        case 409 if keyed:
            return make_unclear(409, answer.retry_after)
        case 408 | 425:
            return make_unclear(answer.status, answer.retry_after)
        case status if 200 <= status < 300 or 400 <= status < 500:
            return None
        case status:
            return make_unclear(status, answer.retry_after)


def find_question_error(answer: Answer) -> UpstreamError | None:
    """Error of a poll, look-up or cancellation; None for a 2xx."""
    match answer.status:
        case 404 | 410:
            return make_gone()
        case 401 | 402 | 403:
            return make_denied(answer.status)
        case 429 | 503:
            return make_busy(answer.retry_after)
        case status if answer.ok:
            return None
        case status:
            return make_unclear(status, answer.retry_after)


def make_gone() -> UpstreamGone:
    """Return the error of an unknown job."""
    return UpstreamGone("The provider does not know the job.")


def make_denied(status: int) -> UpstreamDenied:
    """Return the error of rejected credentials, without the provider's text."""
    return UpstreamDenied(f"The provider refused the gateway's credentials (HTTP status {status}).")


def read_job_id(value: Any) -> str:
    """Return a job's id. Raises UpstreamUnclear for an invalid one."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not 0 < len(value) <= MAX_JOB_ID or not value.isprintable():
        raise UpstreamUnclear("The provider took the request and gave no job id.")
    return value


def read_word(value: Any) -> str:
    """Return a state word; true, false and whole numbers count as words. Raises UpstreamUnclear."""
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return str(value).lower()
    raise UpstreamUnclear(_NONSENSE)


def read_outputs(value: Any) -> tuple[str, ...]:
    """Return the URLs of 1 to 16 outputs. Raises UpstreamUnclear for anything else."""
    urls = [value] if isinstance(value, str) else value
    if not isinstance(urls, list) or not 0 < len(urls) <= MAX_OUTPUTS:
        raise UpstreamUnclear("The provider's answer is contradictory: it ended without outputs.")
    for url in urls:
        if not isinstance(url, str) or not is_web_address(url):
            raise UpstreamUnclear("The provider's answer is contradictory: an output is no URL.")
    return tuple(urls)


def is_web_address(url: str) -> bool:
    """Return whether it is an absolute http or https URL that needs no escaping."""
    whole = len(url) <= MAX_URL and url.isprintable() and " " not in url and "\\" not in url
    return whole and url.lower().startswith(("http://", "https://"))


def read_seconds(value: Any) -> float | None:
    """Return seconds of output; None for an invalid value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and 0 <= value <= 86400 else None


class _Meaning(Enum):
    REFUSED = "refused"
    BUSY = "busy"
    DENIED = "denied"
    UNKNOWN_JOB = "unknown job"


class ErrorReader:
    """Finds a response's error by its declared codes."""

    def __init__(self, words: ErrorWords | None) -> None:
        self._code = Expression(words.code) if words else None
        self._wait = Expression(words.retry_after) if words and words.retry_after else None
        self._meanings: dict[str, _Meaning] = {}
        if words:
            self._meanings = {
                **dict.fromkeys(words.refused or (), _Meaning.REFUSED),
                **dict.fromkeys(words.busy or (), _Meaning.BUSY),
                **dict.fromkeys(words.denied or (), _Meaning.DENIED),
                **dict.fromkeys(words.unknown_job or (), _Meaning.UNKNOWN_JOB),
            }

    def find(self, answer: Answer) -> UpstreamError | None:
        """Return the error that the body declares; None where the status decides.

        With an undeclared code the status decides, but a 2xx is no success.
        """
        if self._code is None:
            return None
        try:
            document = answer.parse()
            code = self._code.evaluate(document)
            word = None if code is None else read_word(code)
        except (UpstreamUnclear, ExpressionError):
            return None  # no JSON, or of another shape: what reads it next says so
        if word is None:
            return None
        match self._meanings.get(word):
            case _Meaning.REFUSED:
                return UpstreamRejected("The provider refused the request.")
            case _Meaning.BUSY:
                return make_busy(self._read_wait(document) or answer.retry_after)
            case _Meaning.DENIED:
                return make_denied(answer.status)
            case _Meaning.UNKNOWN_JOB:
                return make_gone()
        if not answer.ok:
            return None
        return UpstreamUnclear(
            "The provider answered with an error.",
            retry_after=self._read_wait(document) or answer.retry_after,
        )

    def _read_wait(self, document: Any) -> float | None:
        try:
            return read_wait(self._wait.evaluate(document)) if self._wait else None
        except ExpressionError:
            return None


_SHAPE = "The provider's answer has another shape than it declares."


class JobFinder:
    """Reads the responses to one provider's look-up."""

    def __init__(self, lookup: LookupRequest) -> None:
        self._jobs = Expression(lookup.jobs) if lookup.jobs else None
        self._job_id = Expression(lookup.job_id)
        self._reference = Expression(lookup.reference) if lookup.reference else None

    def find(self, document: Any, reference: str) -> str | None:
        """Return the id of the job submitted under `reference`; None where the response has none.

        Raises UpstreamUnclear for a response of another shape, and for another job in a response
        about this one alone.
        """
        if self._jobs is None:
            job_id = evaluate(self._job_id, document)
            if job_id is None:
                return None
            if not self._is_meant(document, reference):
                raise UpstreamUnclear("The provider answered about another job.")
            return read_job_id(job_id)
        jobs = evaluate(self._jobs, document)
        if jobs is None:
            return None
        if not isinstance(jobs, list):
            raise UpstreamUnclear(_SHAPE)
        for job in jobs:
            job_id = evaluate(self._job_id, job)
            if job_id is not None and self._is_meant(job, reference):
                return read_job_id(job_id)
        return None

    def _is_meant(self, document: Any, reference: str) -> bool:
        return self._reference is None or evaluate(self._reference, document) == reference


def evaluate(expression: Expression, document: Any) -> Any:
    """Return the expression's result for a response. UpstreamUnclear for one of another shape."""
    try:
        return expression.evaluate(document)
    except ExpressionError as error:
        raise UpstreamUnclear(_SHAPE) from error
