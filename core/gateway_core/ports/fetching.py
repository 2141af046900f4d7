"""Fetching what a client's URL leads to.

Fulfilled by `adapters.fetching`.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol


class FetchFailed(Exception):
    """It was not fetched; the text says why, for the client, and names no address."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """An answer: its bytes, whose reading raises FetchFailed, and the length it declares."""

    chunks: AsyncIterator[bytes]
    length: int | None


class Fetcher(Protocol):
    """Fetches within a policy of addresses, at every redirect; one try, and a bounded time."""

    def open(self, url: str, account: str) -> AbstractAsyncContextManager[Fetched]:
        """What is at `url`, fetched within the account's fair share of connections and look-ups.

        FetchFailed; Unavailable where too much is being fetched.
        """
        ...

    async def close(self) -> None:
        """Frees connections and threads."""
        ...
