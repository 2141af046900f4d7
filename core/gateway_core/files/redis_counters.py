"""Storage quota and part counts on Redis."""

import secrets
from collections.abc import Mapping

from gateway_core.files.parts import PartCaps, PartsStale
from gateway_core.files.quota_counters import Claim, Pool, StorageStale, StorageUnavailable, Used
from gateway_core.redis.link import (
    REBUILD_SECONDS,
    Command,
    CountersStale,
    CountersUnavailable,
    RedisAdapter,
    Reply,
    check_reply,
    stage_hash,
)
from gateway_core.redis.scripts import Argument, Script, ScriptCall, load_script

KEPT_SECONDS = 600
"""Short, since an account may have very many pending Uploads of 1,000 parts; later the parts are
listed again."""


def _load_part_script(name: str) -> Script:
    return load_script("parts/parts", f"parts/{name}")


CLAIM_PART = _load_part_script("claim")
RELEASE_PART = _load_part_script("release")
ESTABLISH = _load_part_script("establish")


class RedisParts(RedisAdapter):
    """`PartLedger` on Redis."""

    async def claim(self, account: str, upload: str, part: str, size: int, caps: PartCaps) -> bool:
        arguments = (part, check_size(size), caps.parts, caps.bytes)
        return bool(await self._call(CLAIM_PART, account, upload, *arguments))

    async def release(self, account: str, upload: str, part: str) -> None:
        await self._call(RELEASE_PART, account, upload, part)

    async def establish(self, account: str, upload: str, parts: Mapping[str, int]) -> None:
        flat = (one for part, size in parts.items() for one in (part, check_size(size)))
        await self._call(ESTABLISH, account, upload, *flat)

    async def forget(self, account: str, upload: str) -> None:
        await self._run((b"DEL", self._name_key(account, upload)))

    def _name_key(self, account: str, upload: str) -> str:
        return f"{self._head}{account}}}:parts:{upload}"

    async def _call(self, script: Script, account: str, upload: str, *arguments: Argument) -> Reply:
        key = self._name_key(account, upload)
        return await self._run(ScriptCall(script, (key,), (KEPT_SECONDS, *arguments)))

    async def _run(self, command: ScriptCall | tuple[Argument, ...]) -> Reply:
        try:
            return check_reply((await self._link.run([command]))[0])
        except CountersStale as error:
            raise PartsStale(str(error)) from error
        except CountersUnavailable as error:
            raise StorageUnavailable(str(error)) from error


MOST_BYTES = 2**53 - 1
"""The largest integer that Lua's doubles represent exactly."""


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


class RedisStorage(RedisAdapter):
    """`StorageLedger` on Redis."""

    async def claim(
        self,
        account: str,
        pool: Pool,
        member: str,
        size: int,
        limit: int,
        most: int | None = None,
    ) -> bool:
        members: Argument = "" if most is None else most
        return bool(
            await self._call(CLAIM, account, pool, member, check_size(size), limit, members)
        )

    async def confirm(self, account: str, pool: Pool, member: str, size: int, limit: int) -> bool:
        return bool(await self._call(CONFIRM, account, pool, member, check_size(size), limit))

    async def move(self, account: str, pool: Pool, member: str, to: str) -> None:
        await self._call(MOVE, account, pool, member, to)

    async def release(self, account: str, pool: Pool, member: str) -> None:
        await self._call(RELEASE, account, pool, member)

    async def read_used(self, account: str, pool: Pool) -> Used:
        return Used(*await self._call(USED, account, pool))

    async def list_claims(self, account: str, pool: Pool, min_age: float) -> list[Claim]:
        flat = await self._call(CLAIMS, account, pool, int(min_age * 1_000_000))
        claims = zip(flat[::3], flat[1::3], flat[2::3], strict=True)
        return [Claim(member.decode(), size, age / 1_000_000) for member, size, age in claims]

    async def mark_stale(self, account: str, pool: Pool) -> None:
        await self._call(MARK_STALE, account, pool)

    async def begin_rebuild(self, account: str, pool: Pool) -> str | None:
        nonce = secrets.token_hex(8)
        token = await self._call(BEGIN_REBUILD, account, pool, nonce, REBUILD_SECONDS)
        return None if token is None else token.decode()

    async def renew_rebuild(self, account: str, pool: Pool, token: str) -> bool:
        return bool(await self._call(RENEW_REBUILD, account, pool, token, REBUILD_SECONDS))

    async def finish_rebuild(
        self, account: str, pool: Pool, token: str, members: Mapping[str, int]
    ) -> bool:
        # staged under a key of its own, then renamed by one script
        seconds, micros = (await self._run([(b"TIME",)]))[0]
        since = int(seconds) * 1_000_000 + int(micros)
        fields = ((name, f"{check_size(size)}:{since}") for name, size in members.items())
        for command in stage_hash(f"{self._name_key(account, pool)}:{token}", fields):
            await self._run([command])
        return bool(await self._call(FINISH_REBUILD, account, pool, token, len(members)))

    async def abandon_rebuild(self, account: str, pool: Pool, token: str) -> None:
        await self._call(ABANDON_REBUILD, account, pool, token)

    async def note_version(self, account: str, version: int) -> None:
        await self._call(VERSION, account, "version", version, 0)

    async def establish_versions(self, account: str, version: int) -> None:
        await self._call(VERSION, account, "version", version, 1)

    async def read_version(self, account: str) -> int | None:
        version: int | None = await self._call(VERSION, account, "version", b"", 0)
        return version

    def _name_key(self, account: str, part: str) -> str:
        return f"{self._head}{account}}}:stored:{part}"

    async def _call(self, script: Script, account: str, part: str, *arguments: Argument) -> Reply:
        key = self._name_key(account, part)
        return (await self._run([ScriptCall(script, (key,), arguments)]))[0]

    async def _run(self, commands: list[Command]) -> list[Reply]:
        try:
            return [check_reply(reply) for reply in await self._link.run(commands)]
        except CountersStale as error:
            raise StorageStale(str(error)) from error
        except CountersUnavailable as error:
            raise StorageUnavailable(str(error)) from error


def check_size(size: int) -> int:
    """`size`, if it is a number of bytes that Lua counts exactly. ValueError."""
    if not 0 <= size <= MOST_BYTES:
        raise ValueError(f"{size} is no number of bytes")
    return size
