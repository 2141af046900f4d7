"""Commands to Redis over a pool of connections, each bound to one run of the server.

It uses redis-py's connections without its clients, which reconnect silently: a script must never
carry the `run_id` of another run of the server than the one that executes it, or counters restored
from an old snapshot would pass for current.

A server that rejects all writes may have been demoted while the name in the URL leads to another
one: after such a reply, or a greeting by another run, the older connections are not used again.
"""

import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from hiredis import pack_command
from redis.asyncio import BlockingConnectionPool
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    ClusterDownError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from gateway_core.concurrency import WaitLimit
from gateway_core.redis.scripts import Argument, ScriptCall


class CountersUnavailable(Exception):
    """Redis did not answer; whether it applied the call is unknown.

    Safe to repeat: reservations and settlements are keyed by task. The sweeper releases
    reservations without an object.
    """


class CountersRefused(CountersUnavailable):
    """Redis rejects this call alone: the account's data is unusable. Other calls may succeed."""


class CountersStale(Exception):
    """The account's counters are not in Redis, which was emptied or restarted: rebuild them."""


Command = ScriptCall | tuple[Argument, ...]
Reply = Any
NoteRoundTrip = Callable[[float, bool], None]
"""Called after each exchange with its seconds, and whether it was answered."""

CONNECT_SECONDS = 1.0
COMMAND_SECONDS = 2.0
PING_SECONDS = 10.0
"""A subscription that is silent for so long gets a ping; twice, and its connection is dead."""
MAX_RETIREMENTS = 5
"""Times in a second that all connections are given up: a full server rejects writes for hours, and
a new connection for each call would be a load of its own."""
BEYOND_SECONDS = 10.0
"""For redis-py's own timers, which must not end before ours: they do not recognise a pause."""

_REJECTS_ALL = re.compile(
    r"\b(READONLY|MASTERDOWN|CLUSTERDOWN|MISCONF|NOREPLICAS|BUSY|UNBLOCKED|OOM|MOVED)\b"
)
"""Error codes of a server that fails over, is full or cannot save; anywhere in a script's error."""
_REJECTING = (ReadOnlyError, ClusterDownError, AskError, TryAgainError, OutOfMemoryError)
"""Errors of which redis-py removes the code; MASTERDOWN and MOVED are subclasses."""

_RUN_ID = re.compile(rb"^run_id:(\w+)", re.MULTILINE)


class RedisLink:
    """A pool of connections to the Redis at `url` (`redis://`, `rediss://`, `unix://`).

    A call takes at most 2 s, including a connect of at most 1 s. Nothing is retried: one request
    must not be counted twice.
    """

    def __init__(
        self, url: str, *, max_connections: int = 16, note: NoteRoundTrip | None = None
    ) -> None:
        self._note = note or _note_nothing
        self._run_ids: WeakKeyDictionary[AbstractConnection, bytes] = WeakKeyDictionary()
        self._outdated: WeakSet[AbstractConnection] = WeakSet()
        self._retirements = (0, 0)
        """The last second with a rejection, and the rejections in it."""
        # The call's own time-out covers every read and write; redis-py's would cost a task each.
        self._pool: BlockingConnectionPool = BlockingConnectionPool.from_url(
            url,
            max_connections=max_connections,
            timeout=None,
            socket_connect_timeout=BEYOND_SECONDS,
            socket_timeout=None,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            redis_connect_func=self._greet,
            # connections of unix sockets do not take the option
            **({} if url.startswith("unix:") else {"socket_keepalive": True}),
        )

    async def run(self, commands: Sequence[Command]) -> list[Reply]:
        """The replies to `commands`, sent together; an error reply is returned as an exception.

        Raises CountersUnavailable where one was not answered: each may have been applied or not.
        """
        began = time.perf_counter()
        try:
            async with WaitLimit(COMMAND_SECONDS):
                # The pool has no annotations.
                connection = await self._pool.get_connection()  # type: ignore[no-untyped-call]
                try:
                    if connection in self._outdated:
                        await connection.disconnect(nowait=True)
                        await connection.connect()
                    replies = await self._exchange(connection, commands)
                    if any(map(_rejects_all, replies)):
                        self._retire()
                except BaseException:
                    # unread replies would be taken for those of the next call
                    await connection.disconnect(nowait=True)
                    raise
                finally:
                    await self._pool.release(connection)
        except (RedisError, OSError) as error:
            self._note(time.perf_counter() - began, False)
            raise CountersUnavailable(
                f"Redis does not answer: {type(error).__name__} {error}"
            ) from error
        self._note(time.perf_counter() - began, True)
        return replies

    async def listen(self, channel: str, receive: Callable[[bytes], None]) -> None:
        """Call `receive` with each message that is published to `channel`, until cancelled.

        It holds a connection. Raises CountersUnavailable where that fails: messages are lost then.
        While none come, it tries a write, since a demoted server would stay silent.
        """
        connection = None
        try:
            async with WaitLimit(COMMAND_SECONDS):
                connection = await self._pool.get_connection()  # type: ignore[no-untyped-call]
                await _write(connection, (b"SUBSCRIBE", channel))
            is_pinged = False
            while True:
                reply = await connection.read_response(timeout=PING_SECONDS)
                if reply is None:
                    if is_pinged:
                        raise CountersUnavailable("Redis is silent")
                    await self.run([(b"SET", f"{channel}:written", b"", b"EX", 60)])
                    if connection in self._outdated:
                        raise CountersUnavailable("Redis has moved")
                    await _write(connection, (b"PING",))
                elif reply[0] == b"message":
                    receive(reply[2])
                is_pinged = reply is None
        except (RedisError, OSError) as error:
            raise CountersUnavailable(
                f"Redis does not answer: {type(error).__name__} {error}"
            ) from error
        finally:
            if connection is not None:
                await connection.disconnect(nowait=True)
                await self._pool.release(connection)

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.aclose()

    def _retire(self) -> None:
        """Have each connection replaced before its next use, at most `MAX_RETIREMENTS` a second."""
        second, count = self._retirements
        now = int(time.monotonic())
        count = count + 1 if now == second else 1
        self._retirements = (now, count)
        if count <= MAX_RETIREMENTS:
            self._outdated.update(self._run_ids)

    async def _greet(self, connection: AbstractConnection) -> None:
        """Called by redis-py on every new connection, before its first command."""
        try:
            async with WaitLimit(CONNECT_SECONDS):
                await connection.on_connect()
                await connection.send_command("INFO", "server", check_health=False)
                reply = await connection.read_response()
            run_id = _find_run_id(reply)
            self._run_ids[connection] = run_id
            self._outdated.discard(connection)
            # the name leads to another server now
            self._outdated.update(c for c, other in self._run_ids.items() if other != run_id)
        except BaseException:
            # the pool would reuse an open connection without its run id
            await connection.disconnect(nowait=True)
            raise

    async def _exchange(
        self, connection: AbstractConnection, commands: Sequence[Command]
    ) -> list[Reply]:
        run_id = self._run_ids[connection]
        replies = await _send(
            connection,
            [c.to_command(run_id) if isinstance(c, ScriptCall) else c for c in commands],
        )
        unknown = [
            (place, command)
            for place, (command, reply) in enumerate(zip(commands, replies, strict=True))
            if isinstance(reply, NoScriptError) and isinstance(command, ScriptCall)
        ]
        if unknown:
            again = await _send(connection, [c.to_full_command(run_id) for _, c in unknown])
            for (place, _), reply in zip(unknown, again, strict=True):
                replies[place] = reply
        return replies


class RedisAdapter:
    """Base of the adapters: keys of the gateway `namespace` in the Redis at `url`.

    Several gateways may share a Redis and have accounts of the same name. For one event loop.
    """

    def __init__(
        self,
        url: str,
        *,
        namespace: str = "default",
        max_connections: int = 4,
        note: NoteRoundTrip | None = None,
    ) -> None:
        # the braces keep the keys of an account on one node of a cluster
        self._head = f"gw:{{{namespace}/"
        self._link = RedisLink(url, max_connections=max_connections, note=note)

    async def close(self) -> None:
        """Close all connections."""
        await self._link.close()

    async def _run(self, *commands: Command) -> list[Reply]:
        """The replies to commands that are sent together. Raises as `check_reply`."""
        return [check_reply(reply) for reply in await self._link.run(commands)]

    async def _scan(self, pattern: str) -> AsyncIterator[list[bytes]]:
        """Pages of the keys that match a pattern; a key may come more than once."""
        cursor: bytes = b"0"
        while True:
            scan: Command = (b"SCAN", cursor, b"MATCH", pattern, b"COUNT", CHUNK)
            [(cursor, keys)] = await self._run(scan)
            yield keys
            if cursor == b"0":
                return

    async def _remove(self, prefix: str) -> None:
        """Remove all keys with a prefix."""
        async for keys in self._scan(f"{prefix}*"):
            if keys:
                await self._run((b"UNLINK", *keys))

    async def _read_clock(self) -> int:
        """The server's time in microseconds."""
        [(seconds, micros)] = await self._run((b"TIME",))
        return int(seconds) * 1_000_000 + int(micros)


def _note_nothing(_seconds: float, _answered: bool) -> None:
    """Default of `note`."""


def _find_run_id(info: bytes | None) -> bytes:
    found = _RUN_ID.search(info or b"")
    if found is None:
        raise RedisError("the server does not tell its run_id")
    return found[1]


async def _send(
    connection: AbstractConnection, commands: Sequence[tuple[Argument, ...]]
) -> list[Reply]:
    await _write(connection, *commands)
    replies: list[Reply] = []
    for _ in commands:
        try:
            replies.append(await connection.read_response())
        except ResponseError as error:
            replies.append(error)
    return replies


async def _write(connection: AbstractConnection, *commands: tuple[Argument, ...]) -> None:
    # the annotation is wrong: it takes a tuple for each command. hiredis packs in a tenth of the
    # time of redis-py.
    packed = b"".join([pack_command(command) for command in commands])  # type: ignore[arg-type]
    await connection.send_packed_command(packed, check_health=False)


def _rejects_all(reply: Reply) -> bool:
    """Return whether the server rejects all writes, not this command alone."""
    if not isinstance(reply, ResponseError):
        return False
    return isinstance(reply, _REJECTING) or _REJECTS_ALL.search(str(reply)) is not None


def check_reply(reply: Reply) -> Reply:
    """The reply, unless it is an error.

    Raises:
        CountersStale: the script found no counters.
        CountersUnavailable: the server rejects all writes now.
        CountersRefused: any other error, of this call alone.
    """
    if isinstance(reply, ResponseError):
        if str(reply).startswith("STALE"):
            raise CountersStale(str(reply))
        if _rejects_all(reply):
            raise CountersUnavailable(f"Redis rejects all writes: {reply}") from reply
        raise CountersRefused(f"Redis refuses: {reply}") from reply
    return reply


CHUNK = 1000
"""Fields in one HSET, and commands of a rebuild in one exchange."""
REBUILD_SECONDS = 30
"""Lifetime of a rebuild and its staged keys; a rebuild of storage is renewed."""


def stage_hash(key: str, fields: Iterable[tuple[str, Argument]]) -> Iterator[Command]:
    """Commands that replace the hash `key` by `fields`."""
    left = iter(fields)
    yield b"DEL", key
    while chunk := list(islice(left, CHUNK)):
        yield b"HSET", key, *(part for field in chunk for part in field)
    yield b"EXPIRE", key, REBUILD_SECONDS
