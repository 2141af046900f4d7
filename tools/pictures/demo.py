"""docs/pictures/demo.svg: the terminal of `make demo`, animated."""

import os
import tempfile
from dataclasses import asdict
from pathlib import Path

from tools.pictures.gateway import ROOT, choose_ports
from tools.pictures.recording import Output, record, shorten_pauses
from tools.pictures.terminal import draw_recording, replay, type_command

COMMAND = "make demo"
COLUMNS, ROWS = 108, 60
"""As wide as the table of kubectl, and higher than all output, so that nothing scrolls."""
PAUSE_SECONDS = 1.2
MOST_SECONDS = 300.0
_LINKED = ("Makefile", "pyproject.toml", "requirements", ".venv")


def draw_demo() -> str:
    """The SVG of a demo that runs now.

    Raises:
        RecordingError: the demo failed.
    """
    outputs = shorten_pauses(_record_demo(), PAUSE_SECONDS)
    return draw_recording(COMMAND, replay(type_command(COMMAND, outputs), COLUMNS, ROWS), COLUMNS)


def _record_demo() -> list[Output]:
    """The demo runs in a folder of its own, so that it neither shows nor touches `.local`."""
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
        return record(COMMAND.split(), folder, env, (COLUMNS, ROWS), MOST_SECONDS)
