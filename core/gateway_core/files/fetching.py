"""HTTP client for content at URLs that clients choose (contract §2.5, §11.6)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
from aiohttp.abc import AbstractResolver
from yarl import URL

from gateway_core.api.errors import Unavailable
from gateway_core.egress.addresses import AddressPolicy, AddressRefused
from gateway_core.egress.connector import (
    GuardedSession,
    count_lookups,
    is_refused,
    parse_url,
)
from gateway_core.fair_semaphore import FairSemaphore


class FetchFailed(Exception):
    """The fetch failed; the text gives the reason for the client, without addresses."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A response: its bytes, whose iteration raises FetchFailed, and what its head declares."""

    chunks: AsyncIterator[bytes]
    length: int | None
    cache_control: str = ""


FETCH_SECONDS = 30.0
MOST_REDIRECTS = 3
MOST_AT_ONCE = 32
_CHUNK = 256 * 1024


class Fetcher:
    """Fetches once, under one address policy that every redirect must meet. For one event loop.

    `seconds` bounds the time that one fetch waits for the server, including the look-up of its name
    and the wait for that, but not the time that the caller takes for received bytes.
    """

    def __init__(
        self,
        policy: AddressPolicy,
        *,
        seconds: float = FETCH_SECONDS,
        most_redirects: int = MOST_REDIRECTS,
        resolver: AbstractResolver | None = None,
    ) -> None:
        self._policy = policy
        self._seconds = seconds
        self._most_redirects = most_redirects
        self._session = GuardedSession(policy, resolver=resolver)
        self._slots = FairSemaphore(MOST_AT_ONCE, seconds=seconds, error=_too_many)

    @asynccontextmanager
    async def open(self, url: str, account: str) -> AsyncIterator[Fetched]:
        """Fetch `url` within the account's fair share of connections and look-ups.

        Raises FetchFailed; Unavailable where too many fetches are under way.
        """
        async with self._slots.take(account):
            limit = asyncio.timeout(self._seconds)
            try:
                async with limit:
                    with count_lookups(account):
                        response = await self._follow(url)
            except TimeoutError as error:
                if not limit.expired():
                    raise
                raise self._give_up() from error
            until = limit.when() or 0.0
            try:
                left = until - asyncio.get_running_loop().time()
                caching = response.headers.get("Cache-Control", "")
                yield Fetched(self._read(response, left), response.content_length, caching)
            finally:
                response.close()

    async def close(self) -> None:
        """Free connections and threads."""
        await self._session.close()

    async def _read(self, response: aiohttp.ClientResponse, left: float) -> AsyncIterator[bytes]:
        """Yield the body, with waits of `left` seconds in total.

        A body that is shorter than declared raises.
        """
        clock, chunks = asyncio.get_running_loop().time, response.content.iter_chunked(_CHUNK)
        while True:
            began = clock()
            try:
                async with asyncio.timeout(max(0.0, left)):
                    chunk = await anext(chunks, b"")
            except TimeoutError as error:
                raise self._give_up() from error
            except (aiohttp.ClientError, OSError) as error:
                raise FetchFailed("broke off while it was read") from error
            if not chunk:
                return
            # the time the caller takes between chunks is not counted
            left -= clock() - began
            yield chunk

    def _give_up(self) -> FetchFailed:
        return FetchFailed(f"was not fetched within {self._seconds:g} s")

    async def _follow(self, url: str) -> aiohttp.ClientResponse:
        """Return the response after redirects."""
        for _ in range(self._most_redirects + 1):
            address = self._check(url)
            response = await self._request(address)
            if response.status == 200:
                # bytes are stored as received: a compressed body would not be the file
                if response.headers.get("Content-Encoding", "identity").lower() != "identity":
                    response.close()
                    raise FetchFailed("was answered in an encoding that was not asked for")
                return response
            response.close()
            if response.status not in (301, 302, 303, 307, 308):
                raise FetchFailed(f"was answered with status {response.status}")
            location = response.headers.get("Location", "")
            try:
                url = str(address.join(URL(location, encoded=location.isascii())))
            except ValueError:
                raise FetchFailed("redirects to what is no address") from None
        raise FetchFailed(f"redirects more than {self._most_redirects} times")

    def _check(self, url: str) -> URL:
        """Return the URL to request, if its text is allowed."""
        try:
            # literal addresses are checked here, names after their look-up by the connector
            self._policy.check_url_literal(url)
        except AddressRefused:
            raise _refuse() from None
        address = parse_url(url)
        if address is None:
            raise FetchFailed("leads to what is no http or https address")
        return address

    async def _request(self, address: URL) -> aiohttp.ClientResponse:
        try:
            return await self._session.open().get(
                address, headers={"accept-encoding": "identity"}, allow_redirects=False
            )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if is_refused(error):
                raise _refuse() from error
            raise FetchFailed("could not be reached") from error


def _refuse() -> FetchFailed:
    return FetchFailed("leads to an address that is not allowed")


def _too_many() -> Unavailable:
    return Unavailable("Too many files are being fetched.")
