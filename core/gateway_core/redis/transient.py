"""Values that live for a while: sessions, single-use codes, counts of attempts.

A loss of Redis loses all of them: people sign in again, and clients begin their flow anew.
"""

from gateway_core.redis.link import RedisAdapter
from gateway_core.redis.scripts import ScriptCall, load_script

PUT = load_script("transient/put")


class TransientStore(RedisAdapter):
    """Bytes and counts by name, each with a lifetime. Every method raises CountersUnavailable."""

    async def put(self, name: str, value: bytes, seconds: int) -> None:
        """Store `value` for so long."""
        await self._run((b"SET", self._key(name), value, b"EX", seconds))

    async def put_in(
        self, group: str, name: str, value: bytes, seconds: int, *, most: int, group_seconds: int
    ) -> None:
        """Store `value` in a group, which keeps `most` values: the oldest make room at once.

        `group_seconds` is how long a value of the group may live, with every extension.
        """
        arguments = (value, seconds, most, group_seconds)
        await self._run(ScriptCall(PUT, (self._key(group), self._key(name)), arguments))

    async def read(self, name: str, *, extend: int = 0) -> bytes | None:
        """The value; where `extend` is given, it lives for so many seconds from now."""
        key = self._key(name)
        command = (b"GETEX", key, b"EX", extend) if extend else (b"GET", key)
        [value] = await self._run(command)
        return None if value is None else bytes(value)

    async def take(self, name: str) -> bytes | None:
        """Remove the value and return it: of concurrent calls one gets it."""
        [value] = await self._run((b"GETDEL", self._key(name)))
        return None if value is None else bytes(value)

    async def remove(self, name: str) -> None:
        """Remove the value, if any."""
        await self._run((b"DEL", self._key(name)))

    async def count(self, name: str, seconds: int) -> tuple[int, int]:
        """Count once more in a window of `seconds` that the first count opened.

        The count, and the seconds until it starts again.
        """
        key = self._key(name)
        replies = await self._run(
            (b"SET", key, 0, b"EX", seconds, b"NX"), (b"INCR", key), (b"TTL", key)
        )
        number, left = int(replies[1]), int(replies[2])
        if left < 0:
            # the window ended between the first two commands
            await self._run((b"EXPIRE", key, seconds))
            left = seconds
        return number, max(1, left)

    def _key(self, name: str) -> str:
        return f"{self._head}transient}}:{name}"
