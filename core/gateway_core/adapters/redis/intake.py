"""`IntakeStop` on Redis: one key that expires. Chosen by the processes' `compose` modules."""

from gateway_core.adapters.redis.link import Command, NoteRoundTrip, RedisLink, Reply, check_reply


class RedisIntakeStop:
    """The mark in the Redis at `url`; for one event loop. `namespace` is the gateway's."""

    def __init__(
        self, url: str, *, namespace: str = "default", note: NoteRoundTrip | None = None
    ) -> None:
        self._key = f"gw:{{{namespace}}}:intake-stop"
        self._link = RedisLink(url, max_connections=1, note=note)

    async def close(self) -> None:
        """Closes the connection."""
        await self._link.close()

    async def set(self, seconds: int) -> None:
        """See the port."""
        await self._run((b"SET", self._key, 1, b"EX", seconds))

    async def clear(self) -> None:
        """See the port."""
        await self._run((b"DEL", self._key))

    async def is_set(self) -> bool:
        """See the port."""
        return bool(await self._run((b"EXISTS", self._key)))

    async def _run(self, command: Command) -> Reply:
        return check_reply((await self._link.run([command]))[0])
