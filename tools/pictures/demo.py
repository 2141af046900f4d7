"""docs/pictures/demo.svg: what `make demo` prints, in a terminal that Rich draws."""

import io
import os
import re
import tempfile
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.text import Text
from tools.pictures.gateway import ROOT, choose_ports
from tools.processes import run_command

COMMAND = "make demo"
COLUMNS = 108
"""As wide as the table of kubectl."""
_LINKED = ("Makefile", "pyproject.toml", "requirements", ".venv")
_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""Rich names fonts of another site, which an image cannot load."""
_UNDER_WAY = "…"
"""Begins the lines about a stage that is still at work."""


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
        output = run_command(*COMMAND.split(), cwd=folder, env=env)
    lines = (line for line in output.splitlines() if not line.startswith(_UNDER_WAY))
    return draw_terminal(COMMAND, lines)


def draw_terminal(command: str, lines: Iterable[str]) -> str:
    """Return the SVG of a terminal in which a command has printed these lines."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    for line in (f"$ {command}", *lines):
        text = Text(line)
        text.highlight_regex("^✓", "green")
        text.highlight_regex(r"^\$ .*", "bold")
        console.print(text)
    return _FONT.sub("", console.export_svg(title=command, unique_id="demo")) + "\n"
