"""Base of the adapters to Redis: a client with a time-out for each call and our errors."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, cast

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.commands.core import AsyncScript
from redis.exceptions import NoScriptError, RedisError, ResponseError

from gateway_core.concurrency import WaitLimit
from gateway_core.failures import describe_failure
from gateway_core.redis.connection import RUN_ID, BoundConnection, connect, rejects_all
from gateway_core.redis.options import RedisOptions
from gateway_core.redis.scripts import Argument, Script, ScriptCall


class CountersUnavailable(Exception):
    """Redis did not answer; whether it applied the call is unknown.

    Safe to repeat: reservations and settlements are keyed by task. The sweeper releases
    reservations without an object.
    """


class CountersRefused(CountersUnavailable):
    """Redis rejects this call alone: the account's data is unusable. Other calls may succeed."""


class CountersStale(Exception):
    """The account's counters are not in Redis, which was emptied or restarted: rebuild them."""


Command = tuple[Argument, ...]
Reply = Any
NoteRoundTrip = Callable[[float, bool], None]
"""Called after each exchange with its seconds, and whether it was answered."""

COMMAND_SECONDS = 2.0
"""For one exchange, with a connect where one is needed."""
PING_SECONDS = 10.0
"""A subscription that is silent for so long gets a ping; twice, and its connection is dead."""
CHUNK = 1000
"""Fields in one HSET, keys in one SCAN, and commands of a rebuild in one exchange."""
REBUILD_SECONDS = 30
"""Lifetime of a rebuild and its staged keys; a rebuild of storage is renewed."""


class RedisAdapter:
    """Keys of the gateway `namespace` in the Redis at `server`, or at its URL.

    Several gateways may share a Redis and have accounts of the same name. For one event loop.
    """

    def __init__(
        self,
        server: RedisOptions | str,
        *,
        namespace: str = "default",
        max_connections: int = 4,
        note: NoteRoundTrip | None = None,
    ) -> None:
        # the braces keep the keys of an account on one node of a cluster
        self._head = f"gw:{{{namespace}/"
        self._redis: Redis = connect(server, max_connections)
        self._scripts: dict[Script, AsyncScript] = {}
        self._note = note or _note_nothing

    async def close(self) -> None:
        """Close all connections."""
        await self._redis.aclose()

    async def _ask(self, command: Awaitable[Any]) -> Reply:
        """Return the reply to a command or a pipeline, within `COMMAND_SECONDS`.

        Raises CountersUnavailable where it was not answered: it may have been applied or not. Error
        replies are raised as `check_reply` says.
        """
        began = time.perf_counter()
        reply: Reply
        try:
            # redis-py's time-outs are for one read each, and lose what arrived during a pause
            async with WaitLimit(COMMAND_SECONDS):
                reply = await command
        except ResponseError as error:
            reply = error
        except (RedisError, OSError) as error:
            self._note(time.perf_counter() - began, False)
            raise CountersUnavailable(
                f"Redis does not answer: {describe_failure(error)}"
            ) from error
        self._note(time.perf_counter() - began, True)
        return check_reply(reply)

    def _open_pipeline(self) -> Pipeline:
        """Return an empty batch of commands, for `_ask_all`."""
        return self._redis.pipeline(transaction=False)

    async def _ask_all(self, pipeline: Pipeline) -> list[Reply]:
        """Return the replies to a batch. Raises as `_ask`."""
        # redis-py's own exception would have the commands' arguments in its text
        replies = await self._ask(pipeline.execute(raise_on_error=False))
        return [check_reply(reply) for reply in replies]

    async def _stage(self, commands: Iterable[Command]) -> None:
        """Send any number of commands, some at a time. Raises as `_ask`."""
        left = iter(commands)
        while chunk := list(islice(left, CHUNK)):
            pipeline = self._open_pipeline()
            for command in chunk:
                pipeline.execute_command(*command)
            await self._ask_all(pipeline)

    async def _run(self, script: Script, keys: Sequence[str], *arguments: Argument) -> Reply:
        """Return the reply to a script. Raises as `_ask`."""
        return await self._ask(self._execute(ScriptCall(script, keys, arguments)))

    async def _run_all(self, calls: Sequence[ScriptCall]) -> list[Reply]:
        """Return the replies to scripts that are sent together, errors among them.

        Raises as `_ask`.
        """
        replies: list[Reply] = await self._ask(self._execute_all(calls))
        return replies

    def _register(self, script: Script) -> AsyncScript:
        if script not in self._scripts:
            self._scripts[script] = self._redis.register_script(script)
        return self._scripts[script]

    async def _execute(self, call: ScriptCall) -> Reply:
        return await self._register(call.script)(call.keys, (RUN_ID, *call.arguments))

    async def _execute_all(self, calls: Sequence[ScriptCall]) -> list[Reply]:
        if len(calls) == 1:
            return [await self._try(calls[0])]
        pipeline = self._open_pipeline()
        for call in calls:
            # a script called with a pipeline would ask in a round trip of its own if it is loaded
            sha = self._register(call.script).sha
            pipeline.evalsha(sha, len(call.keys), *call.keys, RUN_ID, *call.arguments)
        replies: list[Reply] = await pipeline.execute(raise_on_error=False)
        for place, reply in enumerate(replies):
            if isinstance(reply, NoScriptError):
                replies[place] = await self._try(calls[place])
        return replies

    async def _try(self, call: ScriptCall) -> Reply:
        try:
            return await self._execute(call)
        except ResponseError as error:
            return error

    async def listen(self, channel: str, receive: Callable[[bytes], None]) -> None:
        """Call `receive` with each message that is published to `channel`, until cancelled.

        It holds a connection. Raises CountersUnavailable where that fails: messages are lost then.
        While none come, it tries a write, since a demoted server would stay silent.
        """
        async with self._redis.pubsub() as subscription:
            await self._ask(subscription.subscribe(channel))
            connection = cast(BoundConnection, subscription.connection)
            is_pinged = False
            while True:
                try:
                    message = await subscription.get_message(timeout=PING_SECONDS)
                except (RedisError, OSError) as error:
                    raise CountersUnavailable(
                        f"Redis does not answer: {describe_failure(error)}"
                    ) from error
                if message is None:
                    if is_pinged:
                        raise CountersUnavailable("Redis is silent")
                    await self._ask(self._redis.set(f"{channel}:written", b"", ex=60))
                    if connection.is_outdated:
                        raise CountersUnavailable("Redis has moved")
                    await self._ask(subscription.ping())
                elif message["type"] == "message":
                    receive(message["data"])
                is_pinged = message is None

    async def _scan(self, pattern: str) -> AsyncIterator[list[bytes]]:
        """Pages of the keys that match a pattern; a key may come more than once."""
        cursor = 0
        while True:
            cursor, keys = await self._ask(self._redis.scan(cursor, match=pattern, count=CHUNK))
            yield keys
            if cursor == 0:
                return

    async def _remove(self, prefix: str) -> None:
        """Remove all keys with a prefix."""
        async for keys in self._scan(f"{prefix}*"):
            if keys:
                await self._ask(self._redis.unlink(*keys))

    async def _read_clock(self) -> int:
        """Return the server's time in microseconds."""
        seconds, micros = await self._ask(self._redis.time())
        return int(seconds) * 1_000_000 + int(micros)


def _note_nothing(_seconds: float, _answered: bool) -> None:
    """Default of `note`."""


def check_reply(reply: Reply) -> Reply:
    """Return the reply, unless it is an error.

    Raises:
        CountersStale: the script found no counters.
        CountersUnavailable: the server rejects all writes now.
        CountersRefused: any other error, of this call alone.
    """
    if isinstance(reply, ResponseError):
        if str(reply).startswith("STALE"):
            raise CountersStale(str(reply))
        if rejects_all(reply):
            raise CountersUnavailable(f"Redis rejects all writes: {reply}") from reply
        raise CountersRefused(f"Redis refuses: {reply}") from reply
    return reply


def stage_hash(key: str, fields: Iterable[tuple[str, Argument]]) -> Iterator[Command]:
    """Commands that replace the hash `key` by `fields`."""
    left = iter(fields)
    yield "DEL", key
    while chunk := list(islice(left, CHUNK)):
        yield "HSET", key, *(part for field in chunk for part in field)
    yield "EXPIRE", key, REBUILD_SECONDS
