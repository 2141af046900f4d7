"""Downloads of a job's outputs, from the provider and from hosts that its resource allows.

Every address, also of a redirect, is checked before a request is sent.
"""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
from yarl import URL

from gateway_core.api.http_provider import HttpProvider
from gateway_core.egress.connector import EgressRefused
from gateway_core.kube.clock import CLOCK
from gateway_core.providers.http_answers import (
    is_web_address,
    make_busy,
    make_unclear,
    parse_retry_after,
)
from gateway_core.providers.http_calls import Connections
from gateway_core.providers.upstream import (
    Download,
    OutputRejected,
    UpstreamBusy,
    UpstreamError,
    UpstreamGone,
    UpstreamUnclear,
)

_MAX_REDIRECTS = 3
_CHUNK = 256 * 1024
_HOST = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]+", re.IGNORECASE)
_BYTES = "application/octet-stream"
_BYTE_TYPES = ("", _BYTES, "binary/octet-stream", "application/binary")


class OutputRules:
    """Addresses that a provider's outputs may come from."""

    def __init__(self, http: HttpProvider) -> None:
        self._base = URL(http.base_url)
        names = [host.lower() for host in http.output_hosts or ()]
        self._exact = {name for name in names if not name.startswith("*.")}
        self._suffixes = tuple(name[1:] for name in names if name.startswith("*."))
        self.max_bytes = http.max_output_bytes

    @property
    def hosts(self) -> list[str]:
        """All host names of the provider, with their wildcards."""
        suffixes = (f"*{suffix}" for suffix in self._suffixes)
        return [self._base.raw_host or "", *sorted(self._exact), *suffixes]

    def admit(self, url: str) -> URL:
        """Return the parsed address. Raises OutputRejected for one that is not allowed."""
        if not is_web_address(url):
            raise _not_allowed()
        try:
            # unchanged: re-encoding one character would invalidate a signed address
            parsed = URL(url, encoded=url.isascii()).with_fragment(None)
            allowed = self._allows(parsed)
        except ValueError as error:
            raise _not_allowed() from error
        if not allowed:
            raise _not_allowed()
        return parsed

    def owns(self, url: URL) -> bool:
        """Return whether the address has the provider's origin: scheme, host and port."""
        return url.origin() == self._base.origin()

    def _allows(self, url: URL) -> bool:
        host = (url.raw_host or "").lower()
        if url.raw_user is not None or url.raw_password is not None or not _HOST.fullmatch(host):
            return False
        if self.owns(url):
            return True
        named = host in self._exact or (host.endswith(self._suffixes) and not host.startswith("."))
        return named and url.scheme in ("https", self._base.scheme)


class OutputSource:
    """Opens outputs. `headers` are sent to the provider's own origin alone."""

    def __init__(
        self, rules: OutputRules, connections: Connections, headers: Mapping[str, str]
    ) -> None:
        self._rules = rules
        self._connections = connections
        self._headers = headers

    @asynccontextmanager
    async def open(self, url: str) -> AsyncIterator[Download]:
        """Yield the output at `url`.

        Raises OutputRejected, UpstreamGone, Busy or Unclear, also while it is read.
        """
        response = await self._follow(url)
        try:
            kind = _check(response, self._rules.max_bytes)
            yield Download(kind, self._read(response))
        finally:
            response.close()

    async def _follow(self, url: str) -> aiohttp.ClientResponse:
        """Return the response at the end of the redirects, each checked."""
        for _ in range(_MAX_REDIRECTS + 1):
            address = self._rules.admit(url)
            response = await self._request(address)
            if response.status not in (301, 302, 303, 307, 308):
                return response
            response.close()
            location = response.headers.get("Location", "")
            try:
                url = str(address.join(URL(location, encoded=location.isascii())))
            except ValueError as error:
                raise _not_allowed() from error
        raise OutputRejected("The output's address redirects too often.")

    async def _request(self, address: URL) -> aiohttp.ClientResponse:
        own = self._rules.owns(address)
        session = self._connections.own_outputs if own else self._connections.outputs
        # compressed content would be stored as it is, and its length is not the video's
        headers = {"accept-encoding": "identity", **(self._headers if own else {})}
        try:
            return await session.get(address, headers=headers, allow_redirects=False)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            if isinstance(error.__cause__, EgressRefused):
                raise _not_allowed() from error
            raise UpstreamBusy("The output could not be reached.") from error
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise _broken() from error

    async def _read(self, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        """Yield the bytes. A body that ends before its declared length is an error."""
        read = 0
        try:
            async for chunk in response.content.iter_chunked(_CHUNK):
                read += len(chunk)
                if read > self._rules.max_bytes:
                    raise _too_large(self._rules.max_bytes)
                yield chunk
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _broken() from error
        if not read:
            raise UpstreamUnclear("The output is empty.")


def _check(response: aiohttp.ClientResponse, max_bytes: int) -> str:
    """Return the output's content type. Raises for a response without an output."""
    wait = parse_retry_after(response.headers.get("Retry-After"), CLOCK.time())
    match response.status:
        case 200:
            pass
        case 404 | 410:
            raise UpstreamGone("The output is gone.")
        case 429 | 503:
            raise make_busy(wait)
        case status:
            raise make_unclear(status, wait)
    if (response.content_length or 0) > max_bytes:
        raise _too_large(max_bytes)
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise UpstreamUnclear("The output is encoded.")
    kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind in _BYTE_TYPES:
        return _BYTES
    if not re.fullmatch(r"video/[a-z0-9.+-]{1,100}", kind):
        raise UpstreamUnclear("The output is not a video.")
    return kind


def _not_allowed() -> UpstreamError:
    return OutputRejected("The output's address is not allowed.")


def _broken() -> UpstreamError:
    return UpstreamUnclear("The connection broke off while the output was read.")


def _too_large(max_bytes: int) -> UpstreamError:
    return OutputRejected(f"The output is larger than {max_bytes} bytes.")
