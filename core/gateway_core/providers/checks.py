"""Checks of a provider resource beyond its schema.

The operator shows problems as `Ready=False`; adapters reject a resource with problems.
"""

import re
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

from gateway_core.api.conditions import Reason
from gateway_core.api.http_provider import (
    CancelRequest,
    ErrorWords,
    Header,
    HttpProvider,
    LookupRequest,
    PollRequest,
    ResultRequest,
    StateWords,
    SubmitRequest,
)
from gateway_core.api.provider import ProviderSpec
from gateway_core.egress.addresses import DECLARED, AddressRefused
from gateway_core.providers.templates import (
    Expression,
    ExpressionError,
    PathTemplate,
    TemplateError,
    find_header_problem,
)

SUBMIT_PATH = frozenset({"model", "reference"})
SUBMIT_BODY = SUBMIT_PATH | {"input", "notifyUrl"}
JOB = frozenset({"jobId"})
RESULT = JOB | {"resultId"}
LOOKUP = frozenset({"reference"})
"""Variables that the paths and bodies of each call may use."""

_OWN_HEADERS = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "host",
        "te",  # codespell:ignore te
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers of the message framing, which only the HTTP client sets."""

_HOST = re.compile(
    r"(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
)

Request = SubmitRequest | PollRequest | ResultRequest | CancelRequest | LookupRequest


class Problem(NamedTuple):
    """Reason for the `Ready` condition, and a text that says which field to correct, and how."""

    reason: Reason
    text: str


def check_provider(spec: ProviderSpec) -> list[Problem]:
    """Problems that prevent the use of the provider."""
    secret = spec.credentials_secret_ref is not None
    direct = spec.openai or spec.google
    if direct:
        return [
            *_check_base_url(f"{spec.type}.baseUrl", direct.base_url),
            *_check_headers(f"{spec.type}.headers", direct.headers, secret),
        ]
    return list(_check_http(spec.http, secret)) if spec.http else []


def _check_http(http: HttpProvider, secret: bool) -> Iterator[Problem]:
    yield from _check_base_url("http.baseUrl", http.base_url)
    yield from _check_headers("http.headers", http.headers, secret)
    yield from _check_headers("http.outputHeaders", http.output_headers, secret)
    yield from _check_submit(http, secret)
    yield from _check_poll(http, secret)
    if http.result:
        yield from _check_request("http.result", http.result, RESULT, RESULT, secret)
        yield from _check_expression("http.result.errorMessage", http.result.error_message)
    if http.cancel:
        yield from _check_request("http.cancel", http.cancel, JOB, JOB, secret)
        yield from _require("http.cancel", http.cancel, "jobId")
    if http.lookup:
        yield from _check_lookup(http.lookup, secret)
    if http.errors:
        yield from _check_errors(http.errors)
    for host in http.output_hosts or ():
        if not _is_host_pattern(host):
            text = f"http.outputHosts: {host!r} must be a host name or *. and a host name"
            yield Problem(Reason.INVALID_FIELD, text)


def _check_submit(http: HttpProvider, secret: bool) -> Iterator[Problem]:
    submit = http.submit
    yield from _check_request("http.submit", submit, SUBMIT_PATH, SUBMIT_BODY, secret)
    yield from _check_expression("http.submit.jobId", submit.job_id)
    yield from _check_expression("http.submit.errorMessage", submit.error_message)
    key = (submit.idempotency_header or "").lower()
    taken = {header.name.lower() for header in [*(http.headers or ()), *(submit.headers or ())]}
    if key in taken or key in _OWN_HEADERS | {"content-type"}:
        text = (
            f"http.submit.idempotencyHeader: {submit.idempotency_header} has another value already"
        )
        yield Problem(Reason.INVALID_TEMPLATE, text)
    if http.lookup and not key and not _uses(submit, "reference"):
        text = "http.submit: must send `reference`, since http.lookup asks by it"
        yield Problem(Reason.INVALID_TEMPLATE, text)


def _check_lookup(lookup: LookupRequest, secret: bool) -> Iterator[Problem]:
    yield from _check_request("http.lookup", lookup, LOOKUP, LOOKUP, secret)
    yield from _require("http.lookup", lookup, "reference")
    yield from _check_expression("http.lookup.jobs", lookup.jobs)
    yield from _check_expression("http.lookup.jobId", lookup.job_id)
    yield from _check_expression("http.lookup.reference", lookup.reference)


def _check_errors(errors: ErrorWords) -> Iterator[Problem]:
    yield from _check_expression("http.errors.code", errors.code)
    yield from _check_expression("http.errors.retryAfter", errors.retry_after)
    lists = {
        "refused": errors.refused,
        "busy": errors.busy,
        "denied": errors.denied,
        "unknownJob": errors.unknown_job,
    }
    yield from _check_words("http.errors", lists)
    if not any(lists.values()):
        text = "http.errors: must name a code in refused, busy, denied or unknownJob"
        yield Problem(Reason.INVALID_FIELD, text)


def _check_poll(http: HttpProvider, secret: bool) -> Iterator[Problem]:
    poll = http.poll
    yield from _check_request("http.poll", poll, JOB, JOB, secret)
    yield from _require("http.poll", poll, "jobId")
    yield from _check_expression("http.poll.state", poll.state)
    yield from _check_expression("http.poll.resultId", poll.result_id)
    yield from _check_expression("http.poll.outputs", poll.outputs)
    yield from _check_expression("http.poll.outputSeconds", poll.output_seconds)
    yield from _check_expression("http.poll.errorMessage", poll.error_message)
    yield from _check_state_words(poll.state_words)
    if poll.notified_interval_seconds is not None and not _uses(http.submit, "notifyUrl"):
        text = "http.poll.notifiedIntervalSeconds: http.submit.body does not send notifyUrl"
        yield Problem(Reason.INVALID_FIELD, text)
    if poll.min_interval_seconds > poll.max_interval_seconds:
        text = "http.poll.minIntervalSeconds: may not be above maxIntervalSeconds"
        yield Problem(Reason.INVALID_FIELD, text)
    if http.result and _uses(http.result, "resultId") and not poll.result_id:
        text = "http.poll.resultId: must be specified, since http.result uses it"
        yield Problem(Reason.INVALID_TEMPLATE, text)


def _check_request(
    field: str, request: Request, path: frozenset[str], body: frozenset[str], secret: bool
) -> Iterator[Problem]:
    try:
        PathTemplate(request.path, path)
    except TemplateError as error:
        yield Problem(Reason.INVALID_TEMPLATE, f"{field}.path: {error}")
    yield from _check_headers(f"{field}.headers", request.headers, secret)
    yield from _check_expression(f"{field}.body", request.body, body)


def _check_expression(
    field: str, text: str | None, names: frozenset[str] | None = None
) -> Iterator[Problem]:
    if text is None:
        return
    try:
        roots = Expression(text).roots
    except ExpressionError as error:
        yield Problem(Reason.INVALID_EXPRESSION, f"{field}: {error}")
        return
    for name in sorted(roots - names) if names is not None else ():
        hint = f"there is {', '.join(sorted(names or ()))}"
        if name in ("null", "true", "false"):
            hint = f"write `{name}` in backquotes"
        yield Problem(Reason.INVALID_EXPRESSION, f"{field}: unknown name {name}; {hint}")


def _check_headers(field: str, headers: list[Header] | None, secret: bool) -> Iterator[Problem]:
    seen: set[str] = set()
    for header in headers or ():
        name = header.name.lower()
        problem = find_header_problem(header.value, with_credential=secret)
        if name in _OWN_HEADERS:
            problem = "is set by the gateway alone"
        elif name in seen:
            problem = "stands here twice"
        seen.add(name)
        if problem:
            yield Problem(Reason.INVALID_TEMPLATE, f"{field}.{header.name}: {problem}")


def _check_state_words(words: StateWords) -> Iterator[Problem]:
    lists = {
        "running": words.running,
        "succeeded": words.succeeded,
        "failed": words.failed,
        "cancelled": words.cancelled,
    }
    yield from _check_words("http.poll.stateWords", lists)
    if not words.succeeded:
        yield Problem(Reason.INVALID_FIELD, "http.poll.stateWords.succeeded: may not be empty")


def _check_words(field: str, lists: Mapping[str, list[str] | None]) -> Iterator[Problem]:
    """Problems of a word with two meanings."""
    for word in sorted({word for listed in lists.values() for word in listed or ()}):
        where = [name for name, listed in lists.items() if word in (listed or ())]
        if len(where) > 1:
            text = f"{field}: {word!r} stands in {' and '.join(where)}"
            yield Problem(Reason.INVALID_FIELD, text)


def _require(field: str, request: Request, name: str) -> Iterator[Problem]:
    """Problem of a call about one job whose request does not name it."""
    if not _uses(request, name):
        text = f"{field}: must use {{{name}}} in its path or {name} in its body"
        yield Problem(Reason.INVALID_TEMPLATE, text)


def _uses(request: Request, name: str) -> bool:
    """Return whether a call's path or body reads `name`; an invalid one is reported elsewhere."""
    try:
        body = Expression(request.body).roots if request.body else frozenset()
        return name in body or name in PathTemplate(request.path, SUBMIT_BODY | RESULT).names
    except ValueError:
        return True


def _check_base_url(field: str, url: str) -> Iterator[Problem]:
    if not _is_base_url(url):
        yield Problem(Reason.INVALID_FIELD, f"{field}: must be an http or https URL with a host")
        return
    try:
        DECLARED.check_url_literal(url)
    except AddressRefused as refused:
        yield Problem(Reason.INVALID_FIELD, f"{field}: must not name {refused.reason}")


def _is_base_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        PathTemplate(parts.path or "/", ())
        if parts.port == 0:
            return False
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and _is_host(parts.hostname or "")


def _is_host_pattern(text: str) -> bool:
    name = text.lower()
    return _is_host(name.removeprefix("*."))


def _is_host(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return bool(_HOST.fullmatch(text))
    return True
