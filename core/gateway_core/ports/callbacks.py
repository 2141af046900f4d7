"""Sending one attempt of a callback to an address that a client has named.

Fulfilled by `adapters.callbacks`, which keeps to contract §11.3 and §11.6: an address that the
policy refuses is never connected to, redirects are not followed, and of an answer little is read.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Protocol


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
