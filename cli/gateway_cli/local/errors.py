"""Errors of a local run that a user can act on."""

from pathlib import Path

from gateway_cli.session import CommandError

TAIL_LINES = 20


class LocalRunError(CommandError):
    """The local run cannot go on."""


class PortBusyError(LocalRunError):
    """A port that a process needs is taken."""


class AlreadyRunningError(LocalRunError):
    """Another run is up in the same folder."""


class ProcessFailedError(LocalRunError):
    """A process of the run ended or never became ready; the text has the end of its log."""

    def __init__(self, process: str, text: str, log: Path) -> None:
        self.process = process
        self.log_tail = _read_tail(log)
        quoted = "".join(f"\n  {process} | {line}" for line in self.log_tail)
        super().__init__(f"{process} {text} (log: {log}){quoted}")


def _read_tail(log: Path) -> list[str]:
    """The last lines of a log file; none if there is no such file."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - 65536))
            return file.read().decode(errors="replace").splitlines()[-TAIL_LINES:]
    except OSError:
        return []
