"""`TransientStore` in memory; `now` is moved by tests, `down` has every call fail."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from gateway_core.redis.link import CountersUnavailable
from gateway_core.redis.transient import TransientStore


class FakeTransient(TransientStore):
    def __init__(self) -> None:
        self.now = 0.0
        self.down = False
        self.values: dict[str, tuple[bytes, float]] = {}
        self.counts: dict[str, tuple[int, float]] = {}
        self.groups: dict[str, list[str]] = {}

    async def put(self, name: str, value: bytes, seconds: int) -> None:
        await self._begin()
        self.values[name] = value, self.now + seconds

    async def put_in(
        self, group: str, name: str, value: bytes, seconds: int, *, most: int, group_seconds: int
    ) -> None:
        await self._begin()
        known = self.groups.get(group, [])
        live = [each for each in known if self.values.get(each, (b"", 0.0))[1] > self.now]
        for each in live[: max(0, len(live) + 1 - most)]:
            del self.values[each]
        self.groups[group] = [*(each for each in live if each in self.values), name]
        self.values[name] = value, self.now + seconds

    async def read(self, name: str, *, extend: int = 0) -> bytes | None:
        await self._begin()
        value, until = self.values.get(name, (b"", 0.0))
        if until <= self.now:
            return None
        if extend:
            self.values[name] = value, self.now + extend
        return value

    async def take(self, name: str) -> bytes | None:
        await self._begin()
        value, until = self.values.pop(name, (b"", 0.0))
        return value if until > self.now else None

    async def remove(self, name: str) -> None:
        await self._begin()
        self.values.pop(name, None)
        self.counts.pop(name, None)

    async def count(self, name: str, seconds: int) -> tuple[int, int]:
        await self._begin()
        number, until = self.counts.get(name, (0, 0.0))
        if until <= self.now:
            number, until = 0, self.now + seconds
        self.counts[name] = number + 1, until
        return number + 1, max(1, round(until - self.now))

    async def close(self) -> None:
        return None

    @contextmanager
    def away(self) -> Iterator[None]:
        """Redis does not answer within the block."""
        self.down = True
        try:
            yield
        finally:
            self.down = False

    async def _begin(self) -> None:
        await asyncio.sleep(0)
        if self.down:
            raise CountersUnavailable("Redis is away")
