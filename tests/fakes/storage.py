"""`StorageLedger` and `PartLedger` in memory, with a clock to set; verified as the real ones."""

import secrets
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway_core.files.quota_counters import Claim, PartCaps, Pool, Used
from gateway_core.redis.link import CountersStale
from tests.fakes.redis import FakeRedis

REBUILD_SECONDS = 30.0


@dataclass
class _Pool:
    members: dict[str, tuple[int, float]] = field(default_factory=dict)
    known: bool = False

    @property
    def used(self) -> int:
        return sum(size for size, _ in self.members.values())


@dataclass
class _Rebuild:
    token: str
    until: float
    told: dict[str, int | str] = field(default_factory=dict)
    """By member: its bytes, where it was moved, or '' where it was released."""


class FakeStorage(FakeRedis):
    """Pools of one process."""

    def __init__(self) -> None:
        super().__init__(1_800_000_000.25)
        self._pools: dict[tuple[str, Pool], _Pool] = {}
        self._rebuilds: dict[tuple[str, Pool], _Rebuild] = {}
        self._versions: dict[str, tuple[int, bool]] = {}

    def lose(self) -> None:
        self._pools.clear()
        self._rebuilds.clear()
        self._versions.clear()

    async def claim(
        self,
        account: str,
        pool: Pool,
        member: str,
        size: int,
        limit: int,
        most: int | None = None,
    ) -> bool:
        known = self._known(account, pool)
        if most is not None and member not in known.members and len(known.members) >= most:
            return False
        return self._add(known, member, size, limit)

    async def confirm(self, account: str, pool: Pool, member: str, size: int, limit: int) -> bool:
        known = self._find(account, pool)
        if known is not None:
            had = known.members.pop(member, None)
            fits = (had is not None and had[0] == size) or known.used + size <= limit
            if fits and (had is None or had[0] != size):
                had = size, self.now
            if had is not None:
                known.members[member] = had
            return fits
        self._tell(account, pool, member, size)
        return True

    async def move(self, account: str, pool: Pool, member: str, to: str) -> None:
        known, rebuild = self._find(account, pool), self._find_rebuild(account, pool)
        if known is not None:
            if member in known.members:
                size, _ = known.members.pop(member)
                known.members.setdefault(to, (size, self.now))
        elif rebuild is not None:
            told = rebuild.told.get(member)
            if isinstance(told, int):
                rebuild.told |= {member: "", to: told}
            elif told is None:
                rebuild.told[member] = to

    async def release(self, account: str, pool: Pool, member: str) -> None:
        known = self._find(account, pool)
        if known is not None:
            known.members.pop(member, None)
        else:
            self._tell(account, pool, member, "")

    async def read_used(self, account: str, pool: Pool) -> Used:
        known = self._known(account, pool)
        return Used(known.used, len(known.members))

    async def list_claims(self, account: str, pool: Pool, min_age: float) -> list[Claim]:
        return [
            Claim(member, size, self.now - since)
            for member, (size, since) in self._known(account, pool).members.items()
            if self.now - since >= min_age
        ]

    async def mark_stale(self, account: str, pool: Pool) -> None:
        self._check_away()
        self._pools.setdefault((account, pool), _Pool()).known = False

    async def begin_rebuild(self, account: str, pool: Pool) -> str | None:
        known, rebuild = self._find(account, pool), self._find_rebuild(account, pool)
        if known is not None or rebuild is not None:
            return None
        made = _Rebuild(secrets.token_hex(8), self.now + REBUILD_SECONDS)
        self._rebuilds[account, pool] = made
        return made.token

    async def renew_rebuild(self, account: str, pool: Pool, token: str) -> bool:
        self._check_away()
        rebuild = self._find_rebuild(account, pool)
        if rebuild is None or rebuild.token != token:
            return False
        rebuild.until = self.now + REBUILD_SECONDS
        return True

    async def finish_rebuild(
        self, account: str, pool: Pool, token: str, members: Mapping[str, int]
    ) -> bool:
        known, rebuild = self._find(account, pool), self._find_rebuild(account, pool)
        if rebuild is None or rebuild.token != token:
            return False
        del self._rebuilds[account, pool]
        if known is not None:
            return False
        staged = dict(members)
        for name, told in rebuild.told.items():
            if isinstance(told, str) and told and name in staged:
                staged.setdefault(told, staged.pop(name))
        for name, told in rebuild.told.items():
            if isinstance(told, int):
                staged.setdefault(name, told)
            elif not told:
                staged.pop(name, None)
        entries = {name: (size, self.now) for name, size in staged.items()}
        self._pools[account, pool] = _Pool(entries, known=True)
        return True

    async def abandon_rebuild(self, account: str, pool: Pool, token: str) -> None:
        rebuild = self._find_rebuild(account, pool)
        if rebuild is not None and rebuild.token == token:
            del self._rebuilds[account, pool]

    async def note_version(self, account: str, version: int) -> None:
        self._check_away()
        newest, whole = self._versions.get(account, (0, False))
        self._versions[account] = max(newest, version), whole

    async def establish_versions(self, account: str, version: int) -> None:
        await self.note_version(account, version)
        self._versions[account] = self._versions[account][0], True

    async def read_version(self, account: str) -> int | None:
        self._check_away()
        newest, whole = self._versions.get(account, (0, False))
        return newest if whole else None

    def _add(self, pool: _Pool, member: str, size: int, limit: int) -> bool:
        if member in pool.members:
            return True
        if pool.used + size > limit:
            return False
        pool.members[member] = size, self.now
        return True

    def _tell(self, account: str, pool: Pool, member: str, told: int | str) -> None:
        rebuild = self._find_rebuild(account, pool)
        if rebuild is not None:
            rebuild.told[member] = told

    def _known(self, account: str, pool: Pool) -> _Pool:
        found = self._find(account, pool)
        if found is None:
            raise CountersStale(f"rebuild what {account} stores")
        return found

    def _find(self, account: str, pool: Pool) -> _Pool | None:
        self._check_away()
        found = self._pools.get((account, pool))
        return found if found is not None and found.known else None

    def _find_rebuild(self, account: str, pool: Pool) -> _Rebuild | None:
        found = self._rebuilds.get((account, pool))
        return found if found is not None and found.until > self.now else None


class FakeParts(FakeRedis):
    """Parts' figures of one process."""

    def __init__(self) -> None:
        super().__init__()
        self._pending: dict[str, dict[str, float]] = defaultdict(dict)
        self._uploads: dict[tuple[str, str], dict[str, int]] = {}

    def lose(self) -> None:
        self._pending.clear()
        self._uploads.clear()

    async def begin(self, account: str, upload: str, *, seconds: int, most: int) -> bool:
        self._find(account, upload)
        pending = {name: end for name, end in self._pending[account].items() if end > self.now}
        if upload not in pending and len(pending) >= most:
            return False
        self._pending[account] = {upload: self.now + seconds, **pending}
        return True

    async def claim(self, account: str, upload: str, part: str, size: int, caps: PartCaps) -> bool:
        parts = self._find(account, upload)
        if parts is None:
            raise CountersStale(upload)
        wanted = {**parts, part: size}
        if len(wanted) > caps.parts or sum(wanted.values()) > caps.bytes:
            return False
        parts[part] = size
        return True

    async def release(self, account: str, upload: str, part: str) -> None:
        (self._find(account, upload) or {}).pop(part, None)

    async def establish(self, account: str, upload: str, parts: Mapping[str, int]) -> None:
        known = self._find(account, upload) or {}
        self._uploads[account, upload] = {**parts, **known}

    async def forget(self, account: str, upload: str) -> None:
        self._find(account, upload)
        self._pending[account].pop(upload, None)
        self._uploads.pop((account, upload), None)

    def _find(self, account: str, upload: str) -> dict[str, int] | None:
        self._check_away()
        return self._uploads.get((account, upload))
