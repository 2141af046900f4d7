"""The operator's signal to API processes that etcd is near its quota; one key in Redis."""

from gateway_core.redis.link import Command, RedisAdapter, Reply, check_reply


class IntakeStop(RedisAdapter):
    """A flag shared by all processes of one gateway. Every method raises CountersUnavailable."""

    async def set(self, seconds: int) -> None:
        """Set the flag; it expires after `seconds` unless it is set again."""
        await self._run((b"SET", self._key, 1, b"EX", seconds))

    async def clear(self) -> None:
        """Remove the flag."""
        await self._run((b"DEL", self._key))

    async def is_set(self) -> bool:
        """Whether the flag is set."""
        return bool(await self._run((b"EXISTS", self._key)))

    @property
    def _key(self) -> str:
        return f"{self._head.removesuffix('/')}}}:intake-stop"

    async def _run(self, command: Command) -> Reply:
        return check_reply((await self._link.run([command]))[0])
