"""What can go wrong in a local run, as errors that a user can act on.

LocalRunError
├── PortBusyError          a port is taken by somebody else
├── AlreadyRunningError    another run owns the folder
├── ProcessFailedError     a process ended or never became ready; carries the end of its log
└── ClusterError           the cluster refuses what the run needs of it
"""

from pathlib import Path


class LocalRunError(Exception):
    """The local run cannot go on; the text is for the user."""


class PortBusyError(LocalRunError):
    """A port that a process needs is taken."""


class AlreadyRunningError(LocalRunError):
    """Another run is up in the same folder."""


class ProcessFailedError(LocalRunError):
    """A process of the run failed.

    Attributes:
        process: its name.
        log_tail: the last lines of its log.
    """

    def __init__(self, process: str, text: str, log: Path) -> None:
        self.process = process
        self.log_tail = read_tail(log)
        super().__init__(f"{process} {text} (log: {log})")


class ClusterError(LocalRunError):
    """The Kubernetes API refuses what the run needs, or may not be used."""


def read_tail(log: Path, lines: int = 20) -> list[str]:
    """The last lines of a log file; none if there is no such file."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - 65536))
            return file.read().decode(errors="replace").splitlines()[-lines:]
    except OSError:
        return []
