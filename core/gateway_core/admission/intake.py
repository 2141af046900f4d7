"""The operator's signal to API processes that the record is near its quota; one key in Redis."""

from typing import Protocol

from gateway_core.redis.link import Command, NoteRoundTrip, RedisLink, Reply, check_reply


class IntakeStop(Protocol):
    """A mark that all processes of one gateway share. Every method raises CountersUnavailable."""

    async def set(self, seconds: int) -> None:
        """Sets the mark; it lapses after so long unless it is set again."""
        ...

    async def clear(self) -> None:
        """Removes the mark."""
        ...

    async def is_set(self) -> bool:
        """Whether the mark is set."""
        ...


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
