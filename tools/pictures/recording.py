"""A command recorded in a pseudo-terminal: what it wrote, and when."""

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_CHUNK = 1 << 16
_GRACE_SECONDS = 30.0


class RecordingError(Exception):
    """The command failed or took too long; the text has the end of its output."""


@dataclass(frozen=True, slots=True)
class Output:
    """What the command wrote at a time, in seconds from its start."""

    at: float
    data: bytes


def record(
    command: Sequence[str],
    folder: Path,
    env: Mapping[str, str],
    size: tuple[int, int],
    seconds: float,
) -> list[Output]:
    """The output of `command` in `folder`, in a terminal of that many columns and rows.

    Raises:
        RecordingError: it failed, or did not end within `seconds` and was ended.
    """
    columns, rows = size
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen:
        try:
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            process = subprocess.Popen(  # noqa: S603 - the caller's command
                command,
                cwd=folder,
                env={**env, "TERM": "xterm-256color"},
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
                start_new_session=True,
            )
        finally:
            os.close(theirs)
        try:
            found = _read(screen.fileno(), seconds)
            code = process.wait(_GRACE_SECONDS)
        except (TimeoutError, subprocess.TimeoutExpired) as error:
            raise RecordingError(f"{' '.join(command)} did not end in {seconds:.0f} s") from error
        finally:
            _end(process)
    if code != 0:
        text = b"".join(output.data for output in found).decode(errors="replace")
        raise RecordingError(f"{' '.join(command)} ended with {code}: {text[-2000:]}")
    return found


def _read(screen: int, seconds: float) -> list[Output]:
    begin = time.monotonic()
    found: list[Output] = []
    while (left := begin + seconds - time.monotonic()) > 0:
        if not select.select([screen], [], [], left)[0]:
            break
        # Linux reports EIO once the last process has closed the terminal
        with contextlib.suppress(OSError):
            if data := os.read(screen, _CHUNK):
                found.append(Output(time.monotonic() - begin, data))
                continue
        return found
    raise TimeoutError


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the command and what it started; an orderly stop first, since it may have children."""
    for number, patience in ((signal.SIGTERM, _GRACE_SECONDS), (signal.SIGKILL, None)):
        if process.poll() is None:
            os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience)


def shorten_pauses(outputs: Sequence[Output], most: float) -> list[Output]:
    """The same output, with at most `most` seconds from the end of one line to the next.

    What is written in between, such as the frames of a spinner, is moved proportionally.
    """
    shortened: list[Output] = []
    line_at = now = 0.0
    waiting: list[Output] = []
    for output in outputs:
        waiting.append(output)
        if b"\n" not in output.data and output is not outputs[-1]:
            continue
        pause = output.at - line_at
        factor = min(1.0, most / pause) if pause else 1.0
        shortened += [Output(now + (each.at - line_at) * factor, each.data) for each in waiting]
        now, line_at = shortened[-1].at, output.at
        waiting.clear()
    return shortened
