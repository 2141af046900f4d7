"""The boto3 client, its errors as StoreUnavailable, and threads for its blocking calls."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    PartialCredentialsError,
    ReadTimeoutError,
)

from gateway_core.failures import describe_failure
from gateway_core.proxies import find_proxy
from gateway_core.storage.objects import StoreUnavailable

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

CONNECTIONS = 72
CONNECT_SECONDS = 3
READ_SECONDS = 30
ATTEMPTS = 3


def build_client(
    endpoint: str | None, region: str | None, addressing: Literal["auto", "path", "virtual"]
) -> "S3Client":
    """Return a thread-safe client; credentials come from boto3's usual chain.

    The signature covers the SHA-256 of every body, so the store rejects bytes damaged on the way.
    boto3's newer checksums are used only where S3 requires one: many compatible stores reject them.
    """
    return boto3.session.Session().client(
        "s3",
        endpoint_url=endpoint,
        region_name=region,
        config=Config(
            connect_timeout=CONNECT_SECONDS,
            read_timeout=READ_SECONDS,
            max_pool_connections=CONNECTIONS,
            retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            tcp_keepalive=True,
            # boto3's own reading of NO_PROXY knows no networks
            proxies=_find_proxies(endpoint),
            s3={"addressing_style": addressing, "payload_signing_enabled": True},
        ),
    )


def _find_proxies(endpoint: str | None) -> dict[str, str] | None:
    """Return the endpoint's proxy by scheme; None leaves AWS's own endpoints to boto3."""
    if endpoint is None:
        return None
    proxy = find_proxy(endpoint)
    return {} if proxy is None else {urlsplit(endpoint).scheme: proxy}


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
"""Errors of boto3 calls, and of reading a response's body, that are the store's fault."""

MISSING = ("NoSuchKey", "404")
"""Codes of a missing object; the latter from a response without a body."""


def read_code(error: Exception) -> str:
    """Return the store's error code, e.g. `NoSuchKey`; the status of a response without a body."""
    if not isinstance(error, ClientError):
        return ""
    return str(error.response.get("Error", {}).get("Code", ""))


def read_status(error: Exception) -> int:
    """Return the HTTP status of an error, 0 without a response."""
    if not isinstance(error, ClientError):
        return 0
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def explain(call: str, bucket: str, error: Exception) -> StoreUnavailable:
    """Return the StoreUnavailable for a failed `call` on the bucket."""
    if isinstance(error, ClientError):
        code = read_code(error)
        text = _EXPLANATIONS.get(code) or _BY_STATUS.get(read_status(error))
        reason = f"{text} ({code})" if text else f"refused with {code or read_status(error)}"
    else:
        found = (text for kind, text in _FAILURES if isinstance(error, kind))
        reason = next(found, "") or describe_failure(error)
    return StoreUnavailable(f"bucket {bucket}: {call}: {reason}")


@contextmanager
def explaining(call: str, bucket: str) -> Iterator[None]:
    """Raise errors of boto3 in the block as StoreUnavailable."""
    try:
        yield
    except FAILURES as error:
        raise explain(call, bucket, error) from error


Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


class Threads:
    """Pool of `count` threads. Calls wait for a free thread on the event loop.

    So a cancelled call never starts, and no calls queue up behind hanging ones.
    """

    def __init__(self, count: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._free = asyncio.Semaphore(count)

    def close(self) -> None:
        """Stop the threads once their calls have ended."""
        self._pool.shutdown()

    async def run(
        self,
        work: Callable[Arguments, Result],
        *arguments: Arguments.args,
        **options: Arguments.kwargs,
    ) -> Result:
        """Run `work` on a thread. Cancelling does not stop a thread that has begun."""
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[None] = loop.create_future()

        def end(_: "Future[Any]") -> None:
            self._free.release()
            if not waiting.done():
                waiting.set_result(None)

        def tell(job: "Future[Any]") -> None:
            with suppress(RuntimeError):  # the loop has closed: no caller waits
                # one wake-up for result and release; wrap_future would take three
                loop.call_soon_threadsafe(end, job)

        try:
            job = self._pool.submit(work, *arguments, **options)
        except BaseException:
            self._free.release()
            raise
        job.add_done_callback(tell)
        await waiting
        try:
            return job.result()
        finally:
            # else the traceback of an error keeps the job, its arguments and the error alive
            del job
