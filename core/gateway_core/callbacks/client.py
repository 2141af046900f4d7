"""HTTP client for callbacks, to addresses that clients choose."""

import asyncio
import ssl
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

import aiohttp
from aiohttp.abc import AbstractResolver
from aiohttp.client_proto import ResponseHandler

from gateway_core.callbacks.schedule import read_retry_after
from gateway_core.egress.addresses import AddressPolicy
from gateway_core.egress.connector import (
    CONNECT_SECONDS,
    GuardedSession,
    count_lookups,
    is_refused,
    parse_url,
)
from gateway_core.kube.clock import CLOCK


@dataclass(frozen=True, slots=True)
class CallbackAnswer:
    """Result of one attempt.

    `status` is 100 to 599, None without a response; `text` describes the result for people and has
    nothing that the receiver wrote. `retry_after` is seconds. `is_costly`: the receiver was slow,
    even if it answered, or could not be reached, so that further attempts probably are, too.
    """

    status: int | None
    text: str
    retry_after: float | None = None
    is_costly: bool = False


SLICE = 4096
MOST_MESSAGES = 16
"""Unread responses on a connection with one request: a few 1xx and the final one."""


class BoundedHandler(ResponseHandler):
    """Connection for one request that is aborted after `most` bytes.

    A response that was parsed by then counts, whatever its body still has.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int) -> None:
        super().__init__(loop)
        self._left = most

    def data_received(self, data: bytes) -> None:
        """Parse small slices, so that a flood of 1xx responses is noticed between them."""
        if not data:
            super().data_received(data)  # aiohttp resumes its parser with empty data
            return
        for begin in range(0, min(len(data), self._left), SLICE):
            super().data_received(data[begin : begin + SLICE])
            if len(self._buffer) > MOST_MESSAGES:
                self._left = 0
                break
        self._left -= min(len(data), self._left)
        if self._left == 0 and self.transport is not None:
            self.transport.abort()


MOST_ANSWER = 64 * 1024
"""Bytes read of a response body, whose content does not matter (contract §11.3)."""
MOST_RECEIVED = MOST_ANSWER + 32 * 1024
"""Bytes of a whole response, with headers and preceding informational responses (1xx)."""
DRAIN_SECONDS = 1.0
COSTLY_SHARE = 1 / 3
"""Part of an attempt's time after which the receiver counts as slow."""

_REFUSED = CallbackAnswer(None, "the address is not allowed")
_NO_ADDRESS = CallbackAnswer(None, "the URL cannot be called")
_NOT_FOUND = CallbackAnswer(None, "the host name was not found", is_costly=True)
_UNREACHED = CallbackAnswer(None, "no connection", is_costly=True)
_UNTRUSTED = CallbackAnswer(None, "the certificate is not valid", is_costly=True)
_NO_TLS = CallbackAnswer(None, "no TLS connection", is_costly=True)
_CUT_OFF = CallbackAnswer(None, "the connection was cut off", is_costly=True)
_NONSENSE = CallbackAnswer(None, "the answer is not HTTP", is_costly=True)


class CallbackSender:
    """Sends single attempts under one address policy. `timeout` is seconds for a whole attempt.

    `resolver` and `tls`, the trusted certificates, default to the system's.
    """

    def __init__(
        self,
        policy: AddressPolicy,
        *,
        timeout: float,
        resolver: AbstractResolver | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._timeout = timeout
        self._session = GuardedSession(
            policy,
            connect_seconds=min(CONNECT_SECONDS, timeout),
            resolver=resolver,
            tls=tls,
            handler=lambda: BoundedHandler(asyncio.get_running_loop(), MOST_RECEIVED),
            read_bufsize=MOST_ANSWER // 4,
            # the signed request has exactly the headers of the contract
            skip_auto_headers=("Accept", "Accept-Encoding"),
        )

    async def send(
        self, url: str, headers: Mapping[str, str], body: bytes, share: Hashable = None
    ) -> CallbackAnswer:
        """POST `body` with exactly these headers; never raises for receiver, network or URL.

        Name look-ups are divided fairly by `share`; the wait for one does not count against the
        receiver's time.
        """
        address = parse_url(url)
        if address is None:
            return _NO_ADDRESS
        loop = asyncio.get_running_loop()
        limit = asyncio.timeout(self._timeout)
        try:
            async with limit:
                with count_lookups(share, limit, self._timeout):
                    response = await self._session.open().post(
                        address, data=body, headers=headers, allow_redirects=False
                    )
                end = limit.when() or 0.0
        except TimeoutError:
            seconds = f"{self._timeout:g} s"
            return CallbackAnswer(None, f"no answer within {seconds}", is_costly=True)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return _explain(error)
        try:
            await _drain(response)
        finally:
            response.close()
        answer = _read(response)
        # the limit was rescheduled after the wait for a look-up, so its end tells the time taken
        took = self._timeout - (end - loop.time())
        return replace(answer, is_costly=answer.is_costly or took > self._timeout * COSTLY_SHARE)

    async def close(self) -> None:
        """Free connections and threads."""
        await self._session.close()


def _read(response: aiohttp.ClientResponse) -> CallbackAnswer:
    """Return the answer by its status; servers may send other three digits than HTTP has."""
    status = response.status
    if not 100 <= status <= 599:
        return _NONSENSE
    text = f"answered {status}"
    if 300 <= status <= 399:
        text += ", and redirects are not followed"
    header = response.headers.get("Retry-After")
    return CallbackAnswer(status, text, read_retry_after(status, header, CLOCK.time()))


async def _drain(response: aiohttp.ClientResponse) -> None:
    """Read a part of the body, for receivers that block until it is read."""
    read = 0
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            async for chunk in response.content.iter_chunked(MOST_ANSWER // 4):
                read += len(chunk)
                if read >= MOST_ANSWER:
                    return
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return


def _explain(error: BaseException) -> CallbackAnswer:
    """Return the answer for a failed attempt.

    The error's own text is not used: it has addresses.
    """
    if is_refused(error):
        return _REFUSED
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return _UNTRUSTED
        case aiohttp.ClientConnectorSSLError():
            return _NO_TLS
        case aiohttp.ClientConnectorDNSError():
            return _NOT_FOUND
        case aiohttp.ConnectionTimeoutError() | aiohttp.ClientConnectorError():
            return _UNREACHED
        case aiohttp.InvalidURL():
            return _NO_ADDRESS
        case aiohttp.ClientResponseError() | aiohttp.ClientPayloadError():
            return _NONSENSE
        case aiohttp.ClientError() | OSError():
            return _CUT_OFF
        case _:
            return _NO_ADDRESS
