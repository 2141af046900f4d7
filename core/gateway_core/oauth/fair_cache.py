"""A bounded map whose room holders (addresses, mostly) share fairly."""

from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class FairCache(Generic[T]):
    """At most `most` values by key. The holder that has most of them loses its oldest for another.

    So a holder that fills it displaces its own values, and those of others stay.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[str, tuple[str, T]] = {}
        self._keys_of: dict[str, OrderedDict[str, None]] = {}

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: str) -> T | None:
        """Return the value; None without one."""
        known = self._values.get(key)
        return None if known is None else known[1]

    def put(self, key: str, value: T, holder: str) -> None:
        """Set the value, which counts for the holder from now on."""
        self.remove(key)
        self._values[key] = holder, value
        self._keys_of.setdefault(holder, OrderedDict())[key] = None
        if len(self._values) > self._most:
            richest = max(self._keys_of.values(), key=len)
            self.remove(next(iter(richest)))

    def remove(self, key: str) -> None:
        """Remove the value, if any."""
        known = self._values.pop(key, None)
        if known is not None:
            keys = self._keys_of[known[0]]
            del keys[key]
            if not keys:
                del self._keys_of[known[0]]
