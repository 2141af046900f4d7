"""Storage counters in Redis: bytes of files, reservations of uploads, and parts of Uploads.

An account has two pools, `files` and `temporary`. A pool maps members (object names of files and
uploads) to bytes and is never a bare counter: claiming twice counts once, releasing twice frees
once. Its content can be lost; then methods raise CountersStale and nothing is claimed until it is
rebuilt from GatewayFiles and GatewayUploads (`quota`). So a pool never exceeds its limit (contract
§3.2, §4.1; I6).

A claim is made before its object is created and confirmed after that; it is released or moved after
the object says so. So a loss at any moment loses no member: a rebuild finds the object, or is told
of the change while it lists the objects. An object counts from its creation to its
`deletionTimestamp`.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gateway_core.redis.link import (
    REBUILD_SECONDS,
    RedisAdapter,
    Reply,
    stage_hash,
)
from gateway_core.redis.scripts import Argument, Script, load_script

Pool = Literal["files", "temporary"]

MOST_BYTES = 2**53 - 1
"""The largest integer that Lua's doubles represent exactly."""


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


def _load(name: str) -> Script:
    return load_script("clock", "storage/pool", f"storage/{name}")


CLAIM = _load("claim")
CONFIRM = _load("confirm")
MOVE = _load("move")
RELEASE = _load("release")
USED = _load("used")
CLAIMS = _load("claims")
MARK_STALE = _load("mark_stale")
BEGIN_REBUILD = _load("begin_rebuild")
RENEW_REBUILD = _load("renew_rebuild")
FINISH_REBUILD = _load("finish_rebuild")
ABANDON_REBUILD = _load("abandon_rebuild")
VERSION = load_script("storage/version")


class StorageLedger(RedisAdapter):
    """Pools of all accounts.

    Every method is atomic and raises CountersUnavailable, after which a change may have happened;
    (stale): and CountersStale, after which nothing was changed.
    """

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
        members: Argument = "" if most is None else most
        return bool(
            await self._call(CLAIM, account, pool, member, check_size(size), limit, members)
        )

    async def confirm(self, account: str, pool: Pool, member: str, size: int, limit: int) -> bool:
        """Confirm a claim once the member's object exists.

        Where the pool was lost and rebuilt in between, or another call of the same name has claimed
        other bytes, `size` is claimed anew: False beyond `limit`, and the object has to be deleted
        again. In a stale pool the current rebuild is told, and a later one finds the object: True.
        """
        return bool(await self._call(CONFIRM, account, pool, member, check_size(size), limit))

    async def move(self, account: str, pool: Pool, member: str, to: str) -> None:
        """Rename `member`: an upload becomes its file. Call it once the object says so.

        Nothing happens if `member` is gone; if `to` exists, `member` is released. In a stale pool
        the current rebuild is told.
        """
        await self._call(MOVE, account, pool, member, to)

    async def release(self, account: str, pool: Pool, member: str) -> None:
        """Free the bytes of `member`, if any. Call it once its object is being deleted.

        Also where no object was created. In a stale pool the current rebuild is told.
        """
        await self._call(RELEASE, account, pool, member)

    async def read_used(self, account: str, pool: Pool) -> Used:
        """Bytes and members of the pool. (stale)"""
        return Used(*await self._call(USED, account, pool))

    async def list_claims(self, account: str, pool: Pool, min_age: float) -> list[Claim]:
        """Members at least that old in seconds; a rebuilt one is as old as the rebuild. (stale)"""
        flat = await self._call(CLAIMS, account, pool, int(min_age * 1_000_000))
        claims = zip(flat[::3], flat[1::3], flat[2::3], strict=True)
        return [Claim(member.decode(), size, age / 1_000_000) for member, size, age in claims]

    async def mark_stale(self, account: str, pool: Pool) -> None:
        """Have the pool rebuilt before the next claim: it was found to be wrong."""
        await self._call(MARK_STALE, account, pool)

    async def begin_rebuild(self, account: str, pool: Pool) -> str | None:
        """Return a token for a rebuild; None during another one, and where the pool is not stale.

        It expires after 30 s unless it is renewed.
        """
        nonce = secrets.token_hex(8)
        token = await self._call(BEGIN_REBUILD, account, pool, nonce, REBUILD_SECONDS)
        return None if token is None else token.decode()

    async def renew_rebuild(self, account: str, pool: Pool, token: str) -> bool:
        """Renew the token for another 30 s; False where it has expired."""
        return bool(await self._call(RENEW_REBUILD, account, pool, token, REBUILD_SECONDS))

    async def finish_rebuild(
        self, account: str, pool: Pool, token: str, members: Mapping[str, int]
    ) -> bool:
        """Put `members` (object name -> bytes) in place, with the changes told meanwhile.

        False where the token has expired, or the pool is not stale any more.
        """
        # staged under a key of its own, then renamed by one script
        since = await self._read_clock()
        fields = ((name, f"{check_size(size)}:{since}") for name, size in members.items())
        await self._stage(stage_hash(f"{self._name_key(account, pool)}:{token}", fields))
        return bool(await self._call(FINISH_REBUILD, account, pool, token, len(members)))

    async def abandon_rebuild(self, account: str, pool: Pool, token: str) -> None:
        """Let another rebuild begin."""
        await self._call(ABANDON_REBUILD, account, pool, token)

    async def note_version(self, account: str, version: int) -> None:
        """Note the resourceVersion in which a file of the account was created or deleted."""
        await self._call(VERSION, account, "version", version, 0)

    async def establish_versions(self, account: str, version: int) -> None:
        """Start to know versions: the list of files was at `version` a moment ago.

        Versions noted before in the same run of the store still count.
        """
        await self._call(VERSION, account, "version", version, 1)

    async def read_version(self, account: str) -> int | None:
        """Return the newest noted version, which a list must include.

        None before `establish_versions` and after a loss.
        """
        version: int | None = await self._call(VERSION, account, "version", b"", 0)
        return version

    def _name_key(self, account: str, part: str) -> str:
        return f"{self._head}{account}}}:stored:{part}"

    async def _call(self, script: Script, account: str, part: str, *arguments: Argument) -> Reply:
        return await self._run(script, (self._name_key(account, part),), *arguments)


@dataclass(frozen=True, slots=True)
class PartCaps:
    """The most parts of an Upload, and their most bytes in total."""

    parts: int
    bytes: int


KEPT_SECONDS = 600
"""Short, since an account may have very many pending Uploads of 1,000 parts; later the parts are
listed again."""


def _load_part_script(name: str) -> Script:
    return load_script("parts/parts", f"parts/{name}")


CLAIM_PART = _load_part_script("claim")
RELEASE_PART = _load_part_script("release")
ESTABLISH = _load_part_script("establish")
BEGIN_UPLOAD = load_script("clock", "parts/begin")


class PartLedger(RedisAdapter):
    """Pending Uploads by account, and their parts and bytes, kept for ten minutes after a change.

    Every method is atomic and raises CountersUnavailable; (stale): and CountersStale where the
    counts are lost and have to be established.
    """

    async def begin(self, account: str, upload: str, *, seconds: int, most: int) -> bool:
        """Count a pending Upload for so many seconds; False where the account has `most` others.

        Begun twice, it counts once. After a loss of the counts the pending ones do not count.
        """
        key = f"{self._head}{account}}}:uploads"
        return bool(await self._run(BEGIN_UPLOAD, (key,), seconds, upload, most))

    async def claim(self, account: str, upload: str, part: str, size: int, caps: PartCaps) -> bool:
        """Set the bytes of `part`; False, without a change, beyond a cap. (stale)"""
        arguments = (part, check_size(size), caps.parts, caps.bytes)
        return bool(await self._call(CLAIM_PART, account, upload, *arguments))

    async def release(self, account: str, upload: str, part: str) -> None:
        """Free the bytes of a part that was not stored, if any."""
        await self._call(RELEASE_PART, account, upload, part)

    async def establish(self, account: str, upload: str, parts: Mapping[str, int]) -> None:
        """Set the counts from a listing, `parts` (id -> bytes).

        Claims made meanwhile stay, where another process established the counts first.
        """
        flat = (one for part, size in parts.items() for one in (part, check_size(size)))
        await self._call(ESTABLISH, account, upload, *flat)

    async def forget(self, account: str, upload: str) -> None:
        """Drop the counts of an Upload that has ended."""
        pipeline = self._open_pipeline()
        pipeline.delete(self._name_key(account, upload))
        pipeline.zrem(f"{self._head}{account}}}:uploads", upload)
        await self._ask_all(pipeline)

    def _name_key(self, account: str, upload: str) -> str:
        return f"{self._head}{account}}}:parts:{upload}"

    async def _call(self, script: Script, account: str, upload: str, *arguments: Argument) -> Reply:
        key = self._name_key(account, upload)
        return await self._run(script, (key,), KEPT_SECONDS, *arguments)


def check_size(size: int) -> int:
    """`size`, if it is a number of bytes that Lua counts exactly. ValueError."""
    if not 0 <= size <= MOST_BYTES:
        raise ValueError(f"{size} is no number of bytes")
    return size
