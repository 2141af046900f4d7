"""A master of Redis with two replicas, watched by three Sentinels, all with passwords."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Self

from redis import Redis

from gateway_cli.local.certificates import ClusterKeys
from gateway_core.redis.options import RedisOptions
from tests.servers.server import RedisServer

SERVICE = "gateway"
PASSWORD = "password of redis"
SENTINEL_PASSWORD = "password of the sentinels"
DOWN_SECONDS = 1.0
"""After that many seconds without an answer the Sentinels choose another master."""
FAILOVER_SECONDS = 30.0


class SentinelServer(RedisServer):
    """One Sentinel of three, which watches the master that is the first."""

    name = "sentinel"

    def __init__(self, master: RedisServer, keys: ClusterKeys | None) -> None:
        super().__init__(keys=keys)
        self._config = self.folder / "sentinel.conf"
        self._config.write_text(
            f"""
            bind 127.0.0.1
            port {self.port}
            dir {self.folder}
            requirepass "{SENTINEL_PASSWORD}"
            sentinel monitor {SERVICE} 127.0.0.1 {master.tls_port or master.port} 2
            sentinel auth-pass {SERVICE} "{PASSWORD}"
            sentinel down-after-milliseconds {SERVICE} {DOWN_SECONDS * 1000:.0f}
            sentinel failover-timeout {SERVICE} 5000
            """
        )

    def command(self) -> Sequence[str]:
        return (self.program, str(self._config), "--sentinel", *self._options)


class SentinelGroup:
    """The servers; `with` starts them and waits until each Sentinel knows all others.

    With `keys` they talk TLS to each other and to clients; tests see them without it.
    """

    def __init__(self, keys: ClusterKeys | None = None) -> None:
        self._keys = keys
        self.redis: list[RedisServer] = []
        self.sentinels: list[SentinelServer] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        options = ["--requirepass", PASSWORD, "--masterauth", PASSWORD]
        # a former master that has come back takes no writes before it has been demoted
        options += ["--min-replicas-to-write", "1", "--min-replicas-max-lag", "10"]
        options += ["--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0"]
        for _ in range(3):
            if self.redis:
                first = self.redis[0]
                options += ["--replicaof", "127.0.0.1", str(first.tls_port or first.port)]
            server = RedisServer(options, keys=self._keys)
            self.redis.append(self._stack.enter_context(server))
        for _ in range(3):
            sentinel = SentinelServer(self.redis[0], self._keys)
            self.sentinels.append(self._stack.enter_context(sentinel))
        deadline = time.monotonic() + FAILOVER_SECONDS
        while not self.is_whole():
            if time.monotonic() > deadline:
                raise RuntimeError("the Sentinels did not find each other")
            time.sleep(0.1)

    @property
    def options(self) -> RedisOptions:
        """How a client reaches the master."""
        ports = [server.tls_port or server.port for server in self.sentinels]
        options = RedisOptions(
            "redis:///0",
            password=PASSWORD,
            sentinels=tuple(f"127.0.0.1:{port}" for port in ports),
            sentinel_service=SERVICE,
            sentinel_password=SENTINEL_PASSWORD,
        )
        if self._keys is None:
            return options
        certificate = str(self._keys.certificate)
        return replace(
            options,
            url="rediss:///0",
            ca_file=certificate,
            certificate_file=certificate,
            key_file=str(self._keys.key),
        )

    @property
    def settings(self) -> dict[str, str]:
        """The same as environment variables of a process."""
        return {
            "GATEWAY_REDIS_URL": self.options.url,
            "GATEWAY_REDIS_PASSWORD": PASSWORD,
            "GATEWAY_REDIS_SENTINELS": ",".join(self.options.sentinels),
            "GATEWAY_REDIS_SENTINEL_SERVICE": SERVICE,
            "GATEWAY_REDIS_SENTINEL_PASSWORD": SENTINEL_PASSWORD,
        }

    def find_master(self) -> RedisServer:
        """The master by the first Sentinel that answers."""
        for sentinel in self.sentinels:
            port = int(_ask(sentinel, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1])
            return next(one for one in self.redis if port in (one.port, one.tls_port))
        raise RuntimeError("there is no Sentinel")

    async def wait_for_another(self, former: RedisServer) -> RedisServer:
        """The new master, once it takes writes."""
        deadline = time.monotonic() + FAILOVER_SECONDS
        while time.monotonic() < deadline:
            master = await asyncio.to_thread(self.find_master)
            if master is not former and await asyncio.to_thread(_takes_writes, master):
                return master
            await asyncio.sleep(0.05)
        raise TimeoutError("no other master was chosen")

    def is_whole(self) -> bool:
        """Whether each Sentinel knows all others, and two replicas that follow the master."""
        return all(map(_knows_all, self.sentinels)) and _count_replicas(self.find_master()) == 2


def _ask(sentinel: SentinelServer, *command: str) -> list[Any]:
    with Redis(port=sentinel.port, password=SENTINEL_PASSWORD, protocol=2) as client:
        client.response_callbacks.clear()
        reply: list[Any] = client.execute_command(*command)
        return reply


def _knows_all(sentinel: SentinelServer) -> bool:
    flat = _ask(sentinel, "SENTINEL", "MASTER", SERVICE)
    state = dict(zip(flat[::2], flat[1::2], strict=True))
    counts = state[b"num-slaves"], state[b"num-other-sentinels"]
    return state[b"flags"] == b"master" and counts == (b"2", b"2")


def _count_replicas(master: RedisServer) -> int:
    with Redis(port=master.port, password=PASSWORD) as client:
        return int(client.info("replication")["connected_slaves"])


def _takes_writes(server: RedisServer) -> bool:
    with Redis(port=server.port, password=PASSWORD) as client:
        try:
            return bool(client.set("probe", "", ex=1))
        except Exception:
            return False
