"""The client of Redis, whose connections are each bound to one run of the server.

A script must never carry the `run_id` of another run of the server than the one that executes it,
or counters restored from an old snapshot would pass for current. So a connection asks for the
`run_id` when it connects and sends it in the place of `RUN_ID`, and never connects anew between the
two.

A server that rejects all writes may have been demoted while its name or the Sentinels lead to
another one: after such a reply, or a greeting by another run, older connections are replaced.
"""

import re
import time
from collections.abc import Iterable
from typing import Any

import hiredis
from redis.asyncio import BlockingConnectionPool, Redis, Sentinel
from redis.asyncio.connection import (
    AbstractConnection,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
    parse_url,
)
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import SentinelConnectionPool, SentinelManagedConnection
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    ClusterDownError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError

from gateway_core.redis.options import RedisOptions
from gateway_core.redis.scripts import Argument

RUN_ID: Argument = b"<run_id>"
"""An argument that the connection replaces by the `run_id` of its server; compared by identity."""

SENTINEL_SECONDS = 0.3
"""For a connect to one Sentinel, and for its reply: the next one is asked after that."""
BEYOND_SECONDS = 10.0
"""For redis-py's own timers, which must not end before ours: they do not recognise a pause."""
MAX_RETIREMENTS = 5
"""Times in a second that all connections are given up: a full server rejects writes for hours, and
a new connection for each call would be a load of its own."""

_REJECTS_ALL = re.compile(
    r"\b(READONLY|MASTERDOWN|CLUSTERDOWN|MISCONF|NOREPLICAS|BUSY|UNBLOCKED|OOM|MOVED)\b"
)
"""Error codes of a server that fails over, is full or cannot save; anywhere in a script's error."""
_REJECTING = (ReadOnlyError, ClusterDownError, AskError, TryAgainError, OutOfMemoryError)
"""Errors of which redis-py removes the code; MASTERDOWN and MOVED are subclasses."""

_RUN_ID = re.compile(rb"^run_id:(\w+)", re.MULTILINE)


class Epoch:
    """Count of the times that all connections of one pool had to be replaced."""

    def __init__(self) -> None:
        self.number = 0
        self._run_id = b""
        self._second = (0, 0)
        """The last second with a retirement, and the retirements in it."""

    def enter(self, run_id: bytes) -> int:
        """Return the epoch of a new connection; a new one where another server run greeted."""
        if run_id != self._run_id:
            self._run_id = run_id
            self.number += 1
        return self.number

    def retire(self) -> None:
        """Have each connection replaced before its next use, at most `MAX_RETIREMENTS` a second."""
        second, count = self._second
        now = int(time.monotonic())
        count = count + 1 if now == second else 1
        self._second = (now, count)
        if count <= MAX_RETIREMENTS:
            self.number += 1


class BoundConnection(AbstractConnection):
    """A connection that knows the run of the server it leads to; mixed into redis-py's kinds."""

    def __init__(self, *, epoch: Epoch, **options: Any) -> None:
        super().__init__(**options)
        self._epoch = epoch
        self._number = 0
        self._run_id = b""

    @property
    def is_outdated(self) -> bool:
        """Whether the connection was given up with all others, and is replaced before its use."""
        return self._number != self._epoch.number

    async def connect(self) -> None:
        """Connect, unless there is a connection of the current epoch. The pool calls it each time.

        Raises redis-py's ConnectionError, also where the server refuses a command of the greeting.
        """
        if self.is_connected and self.is_outdated:
            await self.disconnect(nowait=True)
        try:
            await super().connect()  # type: ignore[no-untyped-call]
        except ResponseError as error:
            raise RedisConnectionError(f"the greeting was refused: {error}") from error

    async def on_connect_check_health(self, check_health: bool = True) -> None:
        """Sign in, then ask for the run of the server; before the connection's first command."""
        await super().on_connect_check_health(check_health)
        await self.send_command("INFO", "server", check_health=False)
        match = _RUN_ID.search(await self.read_response() or b"")
        if match is None:
            raise RedisConnectionError("the server does not tell its run_id")
        self._run_id = match[1]
        self._number = self._epoch.enter(self._run_id)

    def pack_command(self, *args: Any) -> list[bytes]:
        """Return the command as it is sent, with the run's id in the place of `RUN_ID`."""
        name, run_id = args[0], self._run_id
        # redis-py names some commands by two words; hiredis packs in a tenth of its time
        words = name.encode().split() if isinstance(name, str) else (name,)
        parts = [run_id if part is RUN_ID else part for part in args[1:]]
        # its annotation is that of a command without arguments
        command: Any = (*words, *parts)
        return [hiredis.pack_command(command)]

    def pack_commands(self, commands: Iterable[Iterable[Any]]) -> list[bytes]:
        """Return the commands of a pipeline, in one piece."""
        return [b"".join(part for command in commands for part in self.pack_command(*command))]

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        """Send what was packed for this connection.

        redis-py would connect anew here, perhaps to another run than the command was packed for.
        """
        if not self.is_connected:
            raise RedisConnectionError("the connection was closed")
        await super().send_packed_command(command, check_health)

    async def read_response(self, *args: Any, **options: Any) -> Any:
        """Return the reply. Retire all connections if it, or its lack, shows a failing server."""
        try:
            return await super().read_response(*args, **options)
        except (RedisConnectionError, ResponseError) as error:
            if rejects_all(error):
                self._epoch.retire()
            raise


def rejects_all(error: RedisConnectionError | ResponseError) -> bool:
    """Return whether the server fails or rejects all writes, not this command alone."""
    return (
        isinstance(error, (RedisConnectionError, *_REJECTING))
        or _REJECTS_ALL.search(str(error)) is not None
    )


class TcpConnection(BoundConnection, Connection):
    """A bound connection over TCP."""


class TlsConnection(BoundConnection, SSLConnection):
    """A bound connection over TLS."""


class UnixConnection(BoundConnection, UnixDomainSocketConnection):
    """A bound connection over a socket of this machine."""


class MasterConnection(BoundConnection, SentinelManagedConnection):
    """A bound connection to the master that the Sentinels name."""


class MasterTlsConnection(BoundConnection, SentinelManagedConnection, SSLConnection):
    """The same over TLS."""


class MasterPool(SentinelConnectionPool, BlockingConnectionPool):
    """A pool that asks Sentinels for the master, and makes callers wait where all are in use."""

    async def aclose(self) -> None:
        """Close the connections to the master and to the Sentinels."""
        await super().aclose()
        await self.sentinel_manager.aclose()


def connect(server: RedisOptions | str, max_connections: int) -> Redis:
    """Return a client of the master at `server`, or at its URL. It connects at the first command.

    Nothing is retried: one request must not be counted twice.
    """
    options = RedisOptions(server) if isinstance(server, str) else server
    address: dict[str, Any] = dict(parse_url(options.url))
    kind = address.pop("connection_class", Connection)
    has_tls = kind is SSLConnection
    common: dict[str, Any] = {"retry": Retry(NoBackoff(), 0), "protocol": 2}
    if has_tls:
        common |= _leave_out_empty(
            ssl_ca_certs=options.ca_file,
            ssl_certfile=options.certificate_file,
            ssl_keyfile=options.key_file,
        )
    pool: dict[str, Any] = {
        **common,
        "epoch": Epoch(),
        "max_connections": max_connections,
        # the caller's time-out covers the wait for a connection, and all writes and reads
        "timeout": None,
        "socket_connect_timeout": BEYOND_SECONDS,
        "socket_timeout": None,
        **address,
        **_leave_out_empty(username=options.username, password=options.password),
    }
    if not options.sentinels:
        classes = {SSLConnection: TlsConnection, UnixDomainSocketConnection: UnixConnection}
        bound: type[Any] = classes.get(kind, TcpConnection)
        return Redis.from_pool(BlockingConnectionPool(connection_class=bound, **pool))
    sentinel_options = {
        **common,
        "ssl": has_tls,
        "socket_connect_timeout": SENTINEL_SECONDS,
        "socket_timeout": SENTINEL_SECONDS,
        **_leave_out_empty(username=options.sentinel_username, password=options.sentinel_password),
    }
    for name in ("host", "port"):
        pool.pop(name, None)
    # neither class has annotations
    sentinels = Sentinel(  # type: ignore[no-untyped-call]
        [_parse_address(each) for each in options.sentinels], sentinel_kwargs=sentinel_options
    )
    return Redis.from_pool(
        MasterPool(  # type: ignore[no-untyped-call]
            options.sentinel_service,
            sentinels,
            connection_class=MasterTlsConnection if has_tls else MasterConnection,
            **pool,
        )
    )


def _parse_address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def _leave_out_empty(**options: str) -> dict[str, str]:
    return {name: value for name, value in options.items() if value}
