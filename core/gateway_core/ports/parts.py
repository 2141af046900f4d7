"""What the parts of one Upload take, so that they stay within its caps (contract §4.2).

Fulfilled by `adapters.redis.parts`. A part (its id) stands for its bytes, so repeating a step
changes nothing. All of it may be lost, and is told as PartsStale: it is established again from a
listing of the store. It guards the store and is no record: whether a part exists is for the store
to say.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from gateway_core.ports.storage import StorageStale


class PartsStale(StorageStale):
    """What the Upload's parts take is not known and has to be established; nothing was changed."""


@dataclass(frozen=True, slots=True)
class PartCaps:
    """The most parts, and the most bytes of all of them."""

    parts: int
    bytes: int


class PartLedger(Protocol):
    """Every method is one atomic step, and raises StorageUnavailable.

    Names are those of GatewayUploads. All is forgotten two hours after the last change.
    """

    async def claim(self, account: str, upload: str, part: str, size: int, caps: PartCaps) -> bool:
        """Counts `size` bytes for `part`, in place of what it had.

        False where a cap would be passed; then it has what it had before. PartsStale.
        """
        ...

    async def release(self, account: str, upload: str, part: str) -> None:
        """Frees what a part has that was not stored; nothing happens where it has nothing."""
        ...

    async def establish(self, account: str, upload: str, parts: Mapping[str, int]) -> None:
        """Has the figures be known: `parts` (id -> bytes) are what a listing shows.

        Those claimed meanwhile stay, where another process established them first.
        """
        ...

    async def forget(self, account: str, upload: str) -> None:
        """Drops the figures of an Upload that has ended."""
        ...
