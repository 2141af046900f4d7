"""A bounded amount that many holders share, with a reserve for newcomers (dynamic threshold)."""

from collections import Counter


class DynamicShares:
    """`total` units, of which one holder alone may have `alone`.

    A holder may take more only while it holds less than `alone / (total - alone)` times what is
    free. So the more others hold, the less each may have, and there is always something free for a
    newcomer until very many hold their share.
    """

    def __init__(self, total: int, alone: int) -> None:
        self._total = total
        self._free = total
        self._alone = min(alone, total)
        self._held: Counter[str] = Counter()

    @property
    def held(self) -> int:
        """How much all of them hold."""
        return self._total - self._free

    def may_take(self, holder: str, size: int = 1) -> bool:
        """Whether the holder may have `size` more."""
        if size > self._free:
            return False
        # a Counter gives 0 for a holder that it does not know, and does not keep it
        wanted = self._held[holder] + size
        return wanted * (self._total - self._alone) <= self._alone * (self._free - size)

    def take(self, holder: str, size: int = 1) -> None:
        """Gives the holder `size` more; after `may_take`."""
        self._free -= size
        self._held[holder] += size

    def give_back(self, holder: str, size: int = 1) -> None:
        """Takes `size` back."""
        self._free += size
        self._held[holder] -= size
        if not self._held[holder]:
            del self._held[holder]
