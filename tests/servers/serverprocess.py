"""A server that tests start as a process of its own, kill, halt and start again.

The base of `RedisServer` and `S3Server`: what they share is how a process lives and dies.
"""

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

START_SECONDS = 20


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
            self._process = subprocess.Popen(
                list(self.command()),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self.environment(),
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
