"""What the store's refusals and failures mean, in the port's words.

Texts name the call, the bucket and the store's code, and nothing else of what boto3 or the store
say: that may hold signed addresses or key ids.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    PartialCredentialsError,
    ReadTimeoutError,
)

from gateway_core.ports.objects import StoreUnavailable

_NO_BUCKET = "there is no such bucket"
_DENIED = "the credentials may not do this"
_BAD_CREDENTIALS = "the credentials are not valid there"
_BUSY = "the store is overloaded or out of order"

_EXPLANATIONS = {
    "NoSuchBucket": _NO_BUCKET,
    "404": f"{_NO_BUCKET}, or not for these credentials",
    "AccessDenied": _DENIED,
    "AllAccessDisabled": _DENIED,
    "403": _DENIED,
    "InvalidAccessKeyId": _BAD_CREDENTIALS,
    "SignatureDoesNotMatch": _BAD_CREDENTIALS,
    "ExpiredToken": "the credentials have expired",
    "InvalidToken": _BAD_CREDENTIALS,
    "RequestTimeTooSkewed": "the clocks of this machine and the store differ too much",
    "PermanentRedirect": "the bucket is in another region",
    "AuthorizationHeaderMalformed": "the region is probably not the bucket's",
    "SlowDown": _BUSY,
    "ServiceUnavailable": _BUSY,
    "InternalError": _BUSY,
}

_BY_STATUS = {401: _BAD_CREDENTIALS, 403: _DENIED, 429: _BUSY, 500: _BUSY, 503: _BUSY}

_FAILURES: tuple[tuple[type[BotoCoreError], str], ...] = (
    (NoCredentialsError, "no credentials were found"),
    (PartialCredentialsError, "the credentials are incomplete"),
    (EndpointConnectionError, "the store cannot be reached"),
    (ConnectTimeoutError, "the store cannot be reached in time"),
    (ReadTimeoutError, "the store did not answer in time"),
)

FAILURES = (BotoCoreError, ClientError, OSError)
"""What a call of boto3, or reading an answer's body, raises when the store is at fault."""

MISSING = ("NoSuchKey", "404")
"""Codes of an object that is not there; the latter of an answer without a body."""


def read_code(error: Exception) -> str:
    """The store's code for a refusal, e.g. `NoSuchKey`; for an answer without body its status."""
    if not isinstance(error, ClientError):
        return ""
    return str(error.response.get("Error", {}).get("Code", ""))


def read_status(error: Exception) -> int:
    """The HTTP status of a refusal, 0 where there was no answer."""
    if not isinstance(error, ClientError):
        return 0
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def explain(call: str, bucket: str, error: Exception) -> StoreUnavailable:
    """The port's error for a failed `call` on the bucket."""
    if isinstance(error, ClientError):
        code = read_code(error)
        text = _EXPLANATIONS.get(code) or _BY_STATUS.get(read_status(error))
        reason = f"{text} ({code})" if text else f"refused with {code or read_status(error)}"
    else:
        found = (text for kind, text in _FAILURES if isinstance(error, kind))
        reason = next(found, type(error).__name__)
    return StoreUnavailable(f"bucket {bucket}: {call}: {reason}")


@contextmanager
def explaining(call: str, bucket: str) -> Iterator[None]:
    """Has what boto3 raises inside come out as StoreUnavailable."""
    try:
        yield
    except FAILURES as error:
        raise explain(call, bucket, error) from error
