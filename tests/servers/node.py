"""Node.js as tests run it, and scripts with the packages that they import."""

import shutil
from pathlib import Path

from tools.programs import find_program


def find_node() -> str:
    """The Node.js among the pinned packages, else that of PATH, where none is for the machine."""
    packaged = find_program("node-sdks") / "node_modules" / ".bin" / "node"
    found = str(packaged) if packaged.exists() else shutil.which("node")
    assert found, "no node"
    return found


def link_packages(program: str, scripts: Path, folder: Path) -> Path:
    """Copy the scripts of a folder into another, where they find the packages of `program`."""
    # modules are looked for beside the file that imports them
    (folder / "node_modules").symlink_to(find_program(program) / "node_modules")
    for script in scripts.glob("*.mjs"):
        shutil.copy(script, folder)
    return folder
