"""docs/pictures/demo.svg: the terminal of `make demo`, recorded and animated."""

import os
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import pexpect
from tools.pictures.gateway import ROOT, choose_ports
from tools.pictures.terminal import Output, draw_recording, replay, type_command
from tools.processes import CommandFailed

COMMAND = "make demo"
COLUMNS, ROWS = 108, 60
"""As wide as the table of kubectl, and higher than all output, so that nothing scrolls."""
PAUSE_SECONDS = 1.2
MAX_SECONDS = 300.0
_GRACE_SECONDS = 30.0
_LINKED = ("Makefile", "pyproject.toml", "requirements", ".venv")


def draw_demo() -> str:
    """Return the SVG of a demo that runs now. CommandFailed.

    It runs in a folder of its own, so that it neither shows nor touches `.local`.
    """
    with tempfile.TemporaryDirectory(prefix="gateway-pictures-") as name:
        folder = Path(name).resolve()
        for linked in _LINKED:
            (folder / linked).symlink_to(ROOT / linked)
        # as from a shell: no flags of the make that runs this
        env = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
        env.pop("MFLAGS", None)
        env |= {"GATEWAY_LOCAL_DIR": str(folder / ".local")}
        for port_name, port in asdict(choose_ports()).items():
            env[f"GATEWAY_LOCAL_PORT_{port_name.upper()}"] = str(port)
        outputs = record(COMMAND.split(), folder, env, MAX_SECONDS)
    outputs = type_command(COMMAND, shorten_pauses(outputs, PAUSE_SECONDS))
    return draw_recording(COMMAND, replay(outputs, COLUMNS, ROWS), COLUMNS)


def record(
    command: Sequence[str], folder: Path, env: Mapping[str, str], seconds: float
) -> list[Output]:
    """Return what a command writes to a terminal.

    Raises:
        CommandFailed: it failed, or did not end within `seconds` and was ended.
    """
    env, size = {**env, "TERM": "xterm-256color"}, (ROWS, COLUMNS)
    begin, outputs = time.monotonic(), list[Output]()
    child: pexpect.spawn[bytes] = pexpect.spawn(
        command[0], [*command[1:]], cwd=str(folder), env=env, dimensions=size, timeout=None
    )
    try:
        while (left := begin + seconds - time.monotonic()) > 0:
            data = child.read_nonblocking(1 << 16, timeout=left)
            outputs.append(Output(time.monotonic() - begin, data))
    except pexpect.TIMEOUT:
        pass
    except pexpect.EOF:
        child.wait()
    finally:
        _end(child)
    said = f"{b''.join(output.data for output in outputs).decode(errors='replace')[-2000:]}"
    if time.monotonic() - begin >= seconds:
        raise CommandFailed(f"{' '.join(command)} did not end in {seconds:.0f} s: {said}")
    if child.exitstatus != 0:
        raise CommandFailed(f"{' '.join(command)} ended with {child.exitstatus}: {said}")
    return outputs


def _end(child: "pexpect.spawn[bytes]") -> None:
    """End the command and what it started; an orderly stop first, since it may have children."""
    assert child.pid is not None
    if child.isalive():
        os.killpg(child.pid, signal.SIGTERM)
        end = time.monotonic() + _GRACE_SECONDS
        while child.isalive() and time.monotonic() < end:
            time.sleep(0.05)
    if child.isalive():
        os.killpg(child.pid, signal.SIGKILL)
    child.close(force=True)


def shorten_pauses(outputs: Sequence[Output], most: float) -> list[Output]:
    """Return the output with at most `most` seconds from the end of one line to the next.

    What is written in between, such as the frames of a spinner, is moved proportionally.
    """
    shortened: list[Output] = []
    waiting: list[Output] = []
    line_at = now = 0.0
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
