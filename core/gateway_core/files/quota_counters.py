"""How many bytes each account stores: what its files take, and what is reserved for uploads.

Fulfilled by `adapters.redis.storage`. An account has two pools, `files` and `temporary`. In each, a
member (the object name of a file or an upload) stands for its bytes, never a bare counter: claiming
twice counts once, releasing twice frees once. All of it can be lost: it is told as StorageStale and
made again from the record, GatewayFile and GatewayUpload (`usecases.storage`), and nothing is
claimed meanwhile. So a pool is never overshot (contract §3.2, §4.1; I6).

What is in the record is claimed before and confirmed after it was written there, and released or
moved after the record says so. So a loss of the figures at any moment loses no member: a rebuild
either finds it in the record, or is told of it while it reads. An object counts from its creation
to its `deletionTimestamp`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

Pool = Literal["files", "temporary"]


class StorageUnavailable(Exception):
    """The store of these figures does not answer; nothing is known to have been changed."""


class StorageStale(Exception):
    """What the account stores is not known and has to be made again; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A member, its bytes, and the seconds since it was claimed or moved last."""

    member: str
    bytes: int
    age: float


@dataclass(frozen=True, slots=True)
class Used:
    """What a pool has: bytes of all members, and how many they are."""

    bytes: int
    members: int


class StorageLedger(Protocol):
    """Every method is one atomic step, and raises StorageUnavailable."""

    async def claim(
        self,
        account: str,
        pool: Pool,
        member: str,
        size: int,
        limit: int,
        most: int | None = None,
    ) -> bool:
        """Counts `size` bytes for `member`, unless the pool would go over `limit` bytes.

        Or over `most` members. False where it would. A member that is there keeps what it has, and
        the answer is True. StorageStale.
        """
        ...

    async def confirm(self, account: str, pool: Pool, member: str, size: int, limit: int) -> bool:
        """Makes sure of a claim once the member's object is in the record.

        Where all was lost and made again in between, or the claim was made by another call of the
        same name with other bytes, `size` is claimed anew: False where the pool would go over
        `limit` then, and the object has to be deleted again. Where the pool is stale, a
        rebuild under way is told of it and a later one finds it in the record: True.
        """
        ...

    async def move(self, account: str, pool: Pool, member: str, to: str) -> None:
        """Has the bytes of `member` stand under another name: an upload becomes its file.

        Nothing happens if `member` is gone; if `to` is there already, `member` is released. Where
        the pool is stale, a rebuild under way is told. To be called once the record says so.
        """
        ...

    async def release(self, account: str, pool: Pool, member: str) -> None:
        """Frees what `member` has; nothing happens if it has nothing.

        Where the pool is stale, a rebuild under way is told. To be called once the object is
        deleted or being deleted, or where none was made.
        """
        ...

    async def read_used(self, account: str, pool: Pool) -> Used:
        """What the pool has. StorageStale."""
        ...

    async def list_claims(self, account: str, pool: Pool, min_age: float) -> list[Claim]:
        """Members of at least that age in seconds, for the sweep of those without an object.

        StorageStale. A rebuilt member is as old as the rebuild.
        """
        ...

    async def begin_rebuild(self, account: str, pool: Pool) -> str | None:
        """A token for one rebuild.

        None while another is under way, and where the pool is not stale. It lapses after 30 s
        unless it is renewed.
        """
        ...

    async def renew_rebuild(self, account: str, pool: Pool, token: str) -> bool:
        """Has the rebuild live another 30 s; False where it has lapsed."""
        ...

    async def finish_rebuild(
        self, account: str, pool: Pool, token: str, members: Mapping[str, int]
    ) -> bool:
        """Puts the members of the record in place, with what was told while it was read.

        Members: object name -> bytes. False where the token is no more the rebuild's, or the pool
        is there already.
        """
        ...

    async def abandon_rebuild(self, account: str, pool: Pool, token: str) -> None:
        """Lets another rebuild begin."""
        ...

    async def mark_stale(self, account: str, pool: Pool) -> None:
        """Has the pool made again before anything more is claimed: it was found to be wrong."""
        ...

    async def note_version(self, account: str, version: int) -> None:
        """Tells that a file of the account was made or deleted in this version of the record."""
        ...

    async def establish_versions(self, account: str, version: int) -> None:
        """Has versions be known from now on: the record was at `version` a moment ago.

        What was noted before in the same run of the store still counts.
        """
        ...

    async def read_version(self, account: str) -> int | None:
        """The newest version told, that a list has to have seen; None where that is not known.

        It is not before `establish_versions`, and not after a loss.
        """
        ...
