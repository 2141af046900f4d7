"""`AnswerStore` in memory, with a clock to set; verified as the real one."""

import asyncio
from dataclasses import dataclass

from gateway_core.llm.answer_store import CacheBounds
from tests.fakes.redis import FakeRedis

BESIDE = 512


@dataclass
class _Kept:
    account: str
    answer: bytes
    due: float

    @property
    def size(self) -> int:
        return len(self.answer) + BESIDE


class FakeAnswers(FakeRedis):
    """Answers of one process. `hangs` lets it never answer."""

    def __init__(self, bounds: CacheBounds) -> None:
        super().__init__(1_800_000_000.0)
        self.hangs = False
        self.kept: dict[str, _Kept] = {}
        self._bounds = bounds

    async def find(self, digest: str) -> bytes | None:
        await self._reach()
        found = self.kept.get(digest)
        return found.answer if found is not None and found.due > self.now else None

    async def keep(self, account: str, digest: str, answer: bytes, seconds: int) -> bool:
        await self._reach()
        self.kept = {name: kept for name, kept in self.kept.items() if kept.due > self.now}
        new = _Kept(account, answer, self.now + seconds)
        self.kept.pop(digest, None)
        for most, owner in ((self._bounds.account, account), (self._bounds.total, None)):
            while self._count(owner) + new.size > most:
                own = [name for name, kept in self.kept.items() if owner in (None, kept.account)]
                if not own:
                    return False
                del self.kept[min(own, key=lambda name: self.kept[name].due)]
        self.kept[digest] = new
        return True

    async def close(self) -> None:
        """Nothing is open."""

    def _count(self, owner: str | None) -> int:
        return sum(kept.size for kept in self.kept.values() if owner in (None, kept.account))

    async def _reach(self) -> None:
        await asyncio.sleep(0)
        self._check_away()
        if self.hangs:
            await asyncio.Event().wait()
