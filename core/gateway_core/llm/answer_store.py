"""Kept answers of language models in Redis, bounded in bytes and time."""

from dataclasses import dataclass

from gateway_core.redis.link import NoteRoundTrip, RedisAdapter
from gateway_core.redis.options import RedisOptions
from gateway_core.redis.scripts import load_script

KEEP = load_script("clock", "answers/keep")


@dataclass(frozen=True, slots=True)
class CacheBounds:
    """Most bytes of kept answers, of one account and of all; 0 keeps none."""

    account: int
    total: int

    @property
    def keeps_any(self) -> bool:
        """Whether anything may be kept."""
        return self.account > 0 and self.total > 0


class AnswerStore(RedisAdapter):
    """Answers by the digest of their request.

    Methods raise CountersUnavailable; after that, an answer may have been kept.
    """

    def __init__(
        self,
        server: RedisOptions | str,
        bounds: CacheBounds,
        *,
        namespace: str = "default",
        note: NoteRoundTrip | None = None,
    ) -> None:
        super().__init__(server, namespace=namespace, note=note)
        self._bounds = bounds
        # one slot of a cluster for all accounts: one script counts the bytes of all
        self._root = f"{self._head}}}answers"

    async def find(self, digest: str) -> bytes | None:
        """Return the answer; None where none is kept, or its time is over."""
        answer: bytes | None = await self._ask(self._redis.get(f"{self._root}:{digest}"))
        return answer

    async def keep(self, account: str, digest: str, answer: bytes, seconds: int) -> bool:
        """Keep an answer for so long; False where there is no room.

        Other answers of the account make room, then those of others: first what expires first.
        """
        bounds = self._bounds
        arguments = (account, digest, answer, seconds, bounds.account, bounds.total)
        return bool(await self._run(KEEP, (self._root,), *arguments))
