"""Failures of libraries as words for people: no class, no repr, no errno. Pure.

A log may name the class of an exception. What a person reads (a command's error, a condition, an
Event, a page) comes from here, and the caller says around it what was tried and what to do.
"""

import json
import os
import re
import ssl
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from gateway_core.validation import describe_problem

MOST_CHARACTERS = 300
_MOST_CAUSES = 8
_MOST_PROBLEMS = 3
_REPR = re.compile(r"<[\w.]+(?: object)? at 0x[0-9a-f]+>|\b[A-Z]\w*(?:Error|Exception|Timeout)\(")
_ERRNO = re.compile(r"\[Errno -?\d+\] ")
_REDIS = re.compile(r"Error (\d+) connecting to (\S+)\. .*", re.DOTALL)
_SOCKET = re.compile(r"Connect call failed|Multiple exceptions")
_C_LINE = re.compile(r" \(_ssl\.c:\d+\)")
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_ENDS = ("Error", "Exception")
_BY_NAME = {
    "ServerDisconnectedError": "the connection was closed without an answer",
    "ServerTimeoutError": "no answer in time",
    "ClientPayloadError": "the answer broke off",
    "ContentLengthError": "the answer broke off",
    "TransferEncodingError": "the answer broke off",
    "ContentTypeError": "the answer is no JSON",
    "BadHttpMessage": "the answer is no HTTP",
    "InvalidUrlClientError": "the address is no URL",
    "TooManyRedirects": "too many redirects",
    "IncompleteRead": "the answer broke off",
    "ProtocolError": "the connection was closed",
    "ConnectTimeoutError": "no connection in time",
    "ReadTimeoutError": "no answer in time",
    "ReadTimeout": "no answer in time",
    "ConnectTimeout": "no connection in time",
    "NameResolutionError": "the host's name is not known",
    "ClientConnectorDNSError": "the host's name is not known",
    "gaierror": "the host's name is not known",
}
"""Errors of aiohttp, urllib3, requests, botocore and redis whose own text is no sentence."""


def describe_failure(error: BaseException) -> str:
    """Return what failed, without a full stop: `connection refused`, `a.yaml: permission denied`.

    Errors that libraries wrap in others are looked for in them. Texts are cut after
    `MOST_CHARACTERS`, and are never empty.
    """
    text = next((text for each in _unwrap(error) if (text := _describe(each))), "")
    text = " ".join(text.split()).removesuffix(".") or _name(error)
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"


def describe_invalid(error: ValidationError) -> str:
    """Return the first problems of values that do not fit a model, each after its place."""
    details = error.errors(include_url=False, include_input=False)
    texts = [
        " ".join(filter(None, (".".join(map(str, detail["loc"])), describe_detail(detail))))
        for detail in details[:_MOST_PROBLEMS]
    ]
    more = [f"{len(details) - len(texts)} more"] if len(details) > len(texts) else []
    return "; ".join([*texts, *more])


def describe_detail(detail: Any) -> str:
    """Return the problem of one of pydantic's errors: what the value must be."""
    text = describe_problem(detail)
    if text != "is not valid":
        return text
    return str(detail["msg"]).replace("Input should be", "must be").removeprefix("Value error, ")


def _unwrap(error: BaseException) -> Iterator[BaseException]:
    """Return the error that lies deepest, then those around it."""
    found = [error]
    while len(found) < _MOST_CAUSES:
        inner = _find_inner(found[-1])
        if inner is None or inner in found:
            break
        found.append(inner)
    return reversed(found)


def _find_inner(error: BaseException) -> BaseException | None:
    """Return the error that a library has put into this one; ours have texts of their own."""
    if type(error).__module__.startswith("gateway_") and str(error):
        return None
    for name in ("certificate_error", "os_error", "reason", "__cause__"):
        inner = getattr(error, name, None)
        if isinstance(inner, BaseException):
            return inner
    # requests, urllib3 and redis hand the inner error over as an argument
    return next((each for each in error.args if isinstance(each, BaseException)), None)


def _describe(error: BaseException) -> str:
    """Return the error's own text; empty where it has none that a person reads."""
    names = (kind.__name__ for kind in type(error).__mro__)
    if text := next((_BY_NAME[name] for name in names if name in _BY_NAME), ""):
        return text
    if isinstance(error, TimeoutError) and not error.strerror:
        return "no answer in time"
    if isinstance(error, ValidationError):
        return describe_invalid(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = error.verify_message or "it does not verify"
        return f"the certificate is not trusted: {reason}"
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or _C_LINE.sub("", error.strerror or "")).replace("_", " ").lower()
        return f"TLS failed: {reason}" if reason else "TLS failed"
    if isinstance(error, UnicodeError):
        return "not valid UTF-8 text"
    if isinstance(error, OSError):
        return _describe_os(error)
    if isinstance(error, KeyError | IndexError | LookupError):
        return f"{error.args[0]} is missing" if error.args else ""
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        return f"line {mark.line + 1}, column {mark.column + 1}: {getattr(error, 'problem', '')}"
    if isinstance(error, json.JSONDecodeError):
        return f"not valid JSON (line {error.lineno}, column {error.colno})"
    status = getattr(error, "status", None)
    if status and hasattr(error, "request_info"):
        return f"HTTP status {status}"
    text = str(error)
    if found := _REDIS.fullmatch(text):
        return f"{found[2]}: {os.strerror(int(found[1])).lower()}"
    return "" if _REPR.search(text) else _ERRNO.sub("", text)


def _describe_os(error: OSError) -> str:
    reason = error.strerror or ""
    if not reason or _REPR.search(reason):
        reason = "" if _REPR.search(str(error)) else _ERRNO.sub("", str(error))
    if _SOCKET.search(reason):
        reason = os.strerror(error.errno) if error.errno else "connection refused"
    if not reason:
        return ""
    reason = reason[:1].lower() + reason[1:] if reason[1:2].islower() else reason
    return reason if error.filename is None else f"{error.filename}: {reason}"


def _name(error: BaseException) -> str:
    """Return the class's name in words, for an error without a text."""
    name = type(error).__name__
    for end in _ENDS:
        name = name.removesuffix(end) or name
    return _WORDS.sub(" ", name).lower()
