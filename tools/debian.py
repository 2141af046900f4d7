"""Programs of Debian's packages for tests: found, or installed once.

The package is installed with apt-get where this runs as root and the program is missing; elsewhere
the text of the error says what to install. Playwright brings only the driver: no browser is
downloaded by it.
"""

import os
import shutil
import subprocess
from pathlib import Path

NAMES = {
    "chromium": ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome"),
    "nginx": ("nginx", "/usr/sbin/nginx"),
}
"""The programs of each package, by preference."""


class PackageMissingError(Exception):
    """A program is missing and could not be installed; the text says what to do."""


def find_installed(package: str) -> Path:
    """Return the path of a program: that of the variable in capitals, or on PATH.

    Raises:
        PackageMissingError: there is none.
    """
    variable = package.upper()
    given = os.environ.get(variable)
    if given:
        return Path(given)
    for name in NAMES[package]:
        found = shutil.which(name)
        if found:
            return Path(found)
    raise PackageMissingError(
        f"no {package}: `make programs-full` installs Debian's package as root; elsewhere install"
        f" one, or name one by {variable}"
    )


def ensure_installed(package: str) -> Path:
    """As `find_installed`, but installed if need be, telling so.

    Raises:
        PackageMissingError: it is missing and cannot be installed.
    """
    try:
        return find_installed(package)
    except PackageMissingError:
        apt = shutil.which("apt-get")
        if apt is None or os.geteuid() != 0:
            raise
        print(f"Installing {package} with apt-get (a minute)", flush=True)
        # in runlevel 1 the package starts no server
        options = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
        for arguments in (("update",), ("install", "-y", "--no-install-recommends", package)):
            done = subprocess.run(  # noqa: S603 - a fixed command
                (apt, "-qq", *arguments), env=options, capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise PackageMissingError(f"apt-get failed: {done.stderr[-500:]}") from None
        return find_installed(package)
