"""Sends one attempt of a callback to an address that a client named."""

import asyncio
import ssl
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import aiohttp
from aiohttp.abc import AbstractResolver
from aiohttp.client_proto import ResponseHandler
from yarl import URL

from gateway_core.callbacks.schedule import read_retry_after
from gateway_core.egress.addresses import AddressPolicy
from gateway_core.egress.connector import (
    EgressRefused,
    PooledResolver,
    guarded_connector,
    run_errand,
)
from gateway_core.kube.clock import CLOCK


@dataclass(frozen=True, slots=True)
class CallbackAnswer:
    """What an attempt came to.

    `status` is 100 to 599, None where no answer came; `text` says for people what happened and
    holds nothing that the receiver wrote. `retry_after` is seconds. `is_costly` is whether the
    receiver kept the attempt waiting, be it with an answer in the end, or could not be reached:
    further ones would most likely do the same.
    """

    status: int | None
    text: str
    retry_after: float | None = None
    is_costly: bool = False


class CallbackSender(Protocol):
    """One attempt at a time; nothing is repeated, nothing is remembered."""

    async def send(
        self, url: str, headers: Mapping[str, str], body: bytes, share: Hashable = None
    ) -> CallbackAnswer:
        """POSTs `body` with these headers and none of the gateway's own; never raises for what
        the receiver, the network or the URL does.

        What attempts have to divide between them, such as the looking up of names, is divided
        by `share`; waiting for it takes nothing of the time that the receiver has.
        """
        ...

    async def close(self) -> None:
        """Frees connections."""
        ...


SLICE = 4096
MOST_MESSAGES = 16
"""Answers that may wait unread on a connection that has one request: a few 1xx and the one."""


class BoundedHandler(ResponseHandler):
    """A connection for one request, cut off once `most` bytes have come.

    What has been read by then counts: an answer whose body is longer is an answer.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int) -> None:
        super().__init__(loop)
        self._left = most

    def data_received(self, data: bytes) -> None:
        """Parses a little at a time, and no more than there is room for."""
        if not data:
            super().data_received(data)  # aiohttp's own sign to go on with what it has
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
"""Bytes read of an answer's body; what it says is of no interest (contract §11.3)."""
MOST_RECEIVED = MOST_ANSWER + 32 * 1024
"""Bytes of a whole answer, its headers and informational answers (1xx) before it among them."""
DRAIN_SECONDS = 1.0
CONNECT_SECONDS = 5.0
COSTLY_SHARE = 1 / 3
"""Share of the time for an attempt from which on it counts as one that was kept waiting."""

_REFUSED = CallbackAnswer(None, "the address is not allowed")
_NO_ADDRESS = CallbackAnswer(None, "the URL cannot be called")
_NOT_FOUND = CallbackAnswer(None, "the host name was not found", is_costly=True)
_UNREACHED = CallbackAnswer(None, "no connection", is_costly=True)
_UNTRUSTED = CallbackAnswer(None, "the certificate is not valid", is_costly=True)
_NO_TLS = CallbackAnswer(None, "no TLS connection", is_costly=True)
_CUT_OFF = CallbackAnswer(None, "the connection was cut off", is_costly=True)
_NONSENSE = CallbackAnswer(None, "the answer is not HTTP", is_costly=True)


class HttpCallbackSender(CallbackSender):
    """Sends under one policy. `timeout` is seconds for a whole attempt.

    `resolver` and `tls`, whom to trust, are the system's unless given.
    """

    def __init__(
        self,
        policy: AddressPolicy,
        *,
        timeout: float,
        resolver: AbstractResolver | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._policy = policy
        self._timeout = timeout
        self._resolver = resolver
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None

    async def send(
        self, url: str, headers: Mapping[str, str], body: bytes, share: Hashable = None
    ) -> CallbackAnswer:
        """One attempt; see the port."""
        address = _parse(url)
        if address is None:
            return _NO_ADDRESS
        loop = asyncio.get_running_loop()
        limit = asyncio.timeout(self._timeout)
        try:
            async with limit:
                with run_errand(share, limit, self._timeout):
                    response = await self._open().post(
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
        took = self._timeout - (end - loop.time())
        return replace(answer, is_costly=answer.is_costly or took > self._timeout * COSTLY_SHARE)

    async def close(self) -> None:
        """Frees connections and threads; see the port."""
        if self._session is not None:
            await self._session.close()
        if self._resolver is not None:
            await self._resolver.close()

    def _open(self) -> aiohttp.ClientSession:
        """The session, made at its first use: a connector needs the running loop.

        Every attempt has a connection of its own, so none is sent into one that is just being
        closed, and none is shared by two accounts. What is at work at once is the caller's to
        bound.
        """
        if self._session is None:
            self._resolver = self._resolver or PooledResolver()
            connector = guarded_connector(
                self._policy, 0, resolver=self._resolver, once=True, tls=self._tls
            )
            loop = asyncio.get_running_loop()
            # aiohttp offers no other way to see what comes before it is parsed
            connector._factory = partial(BoundedHandler, loop, MOST_RECEIVED)  # type: ignore[assignment]
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=min(CONNECT_SECONDS, self._timeout)
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                auto_decompress=False,
                read_bufsize=MOST_ANSWER // 4,
                skip_auto_headers=("Accept", "Accept-Encoding"),
            )
        return self._session


def _parse(url: str) -> URL | None:
    """The address to call, its characters as they stand; None for what is none of ours to call."""
    plain = url.isascii() and url.isprintable() and " " not in url
    try:
        address = URL(url, encoded=plain).with_fragment(None)
        callable_ = address.scheme in ("http", "https") and bool(address.host)
    except ValueError:
        return None
    if not callable_ or address.raw_user is not None or address.raw_password is not None:
        return None
    return address


def _read(response: aiohttp.ClientResponse) -> CallbackAnswer:
    """What the answer says by its status, of which there are three digits that HTTP knows."""
    status = response.status
    if not 100 <= status <= 599:
        return _NONSENSE
    text = f"answered {status}"
    if 300 <= status <= 399:
        text += ", and redirects are not followed"
    header = response.headers.get("Retry-After")
    return CallbackAnswer(status, text, read_retry_after(status, header, CLOCK.time()))


async def _drain(response: aiohttp.ClientResponse) -> None:
    """Reads a little of the body, for a receiver that waits until it is taken; never all of it."""
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
    """The answer for an attempt that was cut short; the error's own text names addresses."""
    causes = (error, error.__cause__, getattr(error, "os_error", None))
    if any(isinstance(cause, EgressRefused) for cause in causes):
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
