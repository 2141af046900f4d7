"""The boto3 client, its errors in the interface's terms, and the threads of its blocking calls."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

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
    """A client, safe to use from many threads; credentials by boto3's usual chain.

    The signature covers the SHA-256 of every body, so the store refuses what was damaged on the
    way. boto3's newer checksums are asked for only where S3 demands one: many compatible stores
    refuse them.
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
            s3={"addressing_style": addressing, "payload_signing_enabled": True},
        ),
    )


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


Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


class Threads:
    """So many threads. A call that finds none free waits on this side of them.

    So it is given up with whoever wanted it, and nothing gathers behind calls that hang.
    """

    def __init__(self, count: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._free = asyncio.Semaphore(count)

    def close(self) -> None:
        """Ends them once their work is done."""
        self._pool.shutdown()

    async def run(
        self,
        work: Callable[Arguments, Result],
        *arguments: Arguments.args,
        **options: Arguments.kwargs,
    ) -> Result:
        """What `work` returns or raises. Who is cancelled leaves its thread at work."""
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[None] = loop.create_future()

        def end(_: "Future[Any]") -> None:
            self._free.release()
            if not waiting.done():
                waiting.set_result(None)

        def tell(job: "Future[Any]") -> None:
            with suppress(RuntimeError):  # a loop that has ended has nobody waiting
                # one waking for both, where `wrap_future` beside the release takes three turns
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
            # an error's traceback would hold the job, which holds the error and all arguments
            del job
