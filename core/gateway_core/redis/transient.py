"""Values that live for a while: sessions, single-use codes, counts of attempts.

A loss of Redis loses all of them: people sign in again, and clients begin their flow anew.
"""

from gateway_core.redis.link import RedisAdapter
from gateway_core.redis.scripts import load_script

PUT = load_script("transient/put")


class TransientStore(RedisAdapter):
    """Bytes and counts by name, each with a lifetime. Every method raises CountersUnavailable."""

    async def put(self, name: str, value: bytes, seconds: int) -> None:
        """Store `value` for so long."""
        await self._ask(self._redis.set(self._key(name), value, ex=seconds))

    async def put_in(
        self, group: str, name: str, value: bytes, seconds: int, *, most: int, group_seconds: int
    ) -> None:
        """Store `value` in a group, which keeps `most` values: the oldest make room at once.

        `group_seconds` is how long a value of the group may live, with every extension.
        """
        keys = (self._key(group), self._key(name))
        await self._run(PUT, keys, value, seconds, most, group_seconds)

    async def read(self, name: str, *, extend: int = 0) -> bytes | None:
        """Return the value; where `extend` is given, it lives for so many seconds from now."""
        key = self._key(name)
        command = self._redis.getex(key, ex=extend) if extend else self._redis.get(key)
        value = await self._ask(command)
        return None if value is None else bytes(value)

    async def take(self, name: str) -> bytes | None:
        """Remove the value and return it: of concurrent calls one gets it."""
        value = await self._ask(self._redis.getdel(self._key(name)))
        return None if value is None else bytes(value)

    async def remove(self, name: str) -> None:
        """Remove the value, if any."""
        await self._ask(self._redis.delete(self._key(name)))

    async def count(self, name: str, seconds: int) -> tuple[int, int]:
        """Count once more in a window of `seconds` that the first count opened.

        The count, and the seconds until it starts again.
        """
        key = self._key(name)
        pipeline = self._open_pipeline()
        pipeline.set(key, 0, ex=seconds, nx=True)
        pipeline.incr(key)
        pipeline.ttl(key)
        _, number, left = await self._ask_all(pipeline)
        if left < 0:
            # the window ended between the first two commands
            await self._ask(self._redis.expire(key, seconds))
            left = seconds
        return number, max(1, left)

    def _key(self, name: str) -> str:
        return f"{self._head}transient}}:{name}"
