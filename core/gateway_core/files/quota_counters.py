"""Port of the storage counters: bytes of files, and reservations of uploads, by account.

An account has two pools, `files` and `temporary`. A pool maps members (object names of files and
uploads) to bytes and is never a bare counter: claiming twice counts once, releasing twice frees
once. Its content can be lost; then methods raise StorageStale and nothing is claimed until it is
rebuilt from GatewayFiles and GatewayUploads (`quota`). So a pool never exceeds its limit (contract
§3.2, §4.1; I6).

A claim is made before its object is created and confirmed after that; it is released or moved after
the object says so. So a loss at any moment loses no member: a rebuild finds the object, or is told
of the change while it lists the objects. An object counts from its creation to its
`deletionTimestamp`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

Pool = Literal["files", "temporary"]


class StorageUnavailable(Exception):
    """The store of the counters does not answer; a change may have happened."""


class StorageStale(Exception):
    """The pool's content is lost and has to be rebuilt; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A member, its bytes, and the seconds since its last claim or move."""

    member: str
    bytes: int
    age: float


@dataclass(frozen=True, slots=True)
class Used:
    """Bytes of all members of a pool, and their number."""

    bytes: int
    members: int


class StorageLedger(Protocol):
    """Every method is atomic and raises StorageUnavailable; (stale): and StorageStale."""

    async def claim(
        self,
        account: str,
        pool: Pool,
        member: str,
        size: int,
        limit: int,
        most: int | None = None,
    ) -> bool:
        """Claim `size` bytes for `member`; False beyond `limit` bytes or `most` members. (stale)

        An existing member keeps its bytes, and the answer is True.
        """
        ...

    async def confirm(self, account: str, pool: Pool, member: str, size: int, limit: int) -> bool:
        """Confirm a claim once the member's object exists.

        Where the pool was lost and rebuilt in between, or another call of the same name has claimed
        other bytes, `size` is claimed anew: False beyond `limit`, and the object has to be deleted
        again. In a stale pool the current rebuild is told, and a later one finds the object: True.
        """
        ...

    async def move(self, account: str, pool: Pool, member: str, to: str) -> None:
        """Rename `member`: an upload becomes its file. Call it once the object says so.

        Nothing happens if `member` is gone; if `to` exists, `member` is released. In a stale pool
        the current rebuild is told.
        """
        ...

    async def release(self, account: str, pool: Pool, member: str) -> None:
        """Free the bytes of `member`, if any. Call it once its object is being deleted.

        Also where no object was created. In a stale pool the current rebuild is told.
        """
        ...

    async def read_used(self, account: str, pool: Pool) -> Used:
        """Bytes and members of the pool. (stale)"""
        ...

    async def list_claims(self, account: str, pool: Pool, min_age: float) -> list[Claim]:
        """Members at least that old in seconds; a rebuilt one is as old as the rebuild. (stale)"""
        ...

    async def begin_rebuild(self, account: str, pool: Pool) -> str | None:
        """A token for a rebuild; None during another one, and where the pool is not stale.

        It expires after 30 s unless it is renewed.
        """
        ...

    async def renew_rebuild(self, account: str, pool: Pool, token: str) -> bool:
        """Renew the token for another 30 s; False where it has expired."""
        ...

    async def finish_rebuild(
        self, account: str, pool: Pool, token: str, members: Mapping[str, int]
    ) -> bool:
        """Put `members` (object name -> bytes) in place, with the changes told meanwhile.

        False where the token has expired, or the pool is not stale any more.
        """
        ...

    async def abandon_rebuild(self, account: str, pool: Pool, token: str) -> None:
        """Let another rebuild begin."""
        ...

    async def mark_stale(self, account: str, pool: Pool) -> None:
        """Have the pool rebuilt before the next claim: it was found to be wrong."""
        ...

    async def note_version(self, account: str, version: int) -> None:
        """Note the resourceVersion in which a file of the account was created or deleted."""
        ...

    async def establish_versions(self, account: str, version: int) -> None:
        """Start to know versions: the list of files was at `version` a moment ago.

        Versions noted before in the same run of the store still count.
        """
        ...

    async def read_version(self, account: str) -> int | None:
        """The newest noted version, which a list must include.

        None before `establish_versions` and after a loss.
        """
        ...
