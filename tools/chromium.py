"""Chromium, for the tests of pages: found, or installed once.

Debian's package is installed with apt-get where this runs as root and none is there; elsewhere the
text of the error says what to install. Playwright brings only the driver: no browser is downloaded
by it.
"""

import os
import shutil
import subprocess
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")


class ChromiumMissingError(Exception):
    """There is no Chromium, and it could not be installed; the text says what to do."""


def find_chromium() -> Path:
    """Where Chromium is: `$CHROMIUM`, or on PATH.

    Raises:
        ChromiumMissingError: there is none.
    """
    given = os.environ.get("CHROMIUM")
    if given:
        return Path(given)
    for name in NAMES:
        found = shutil.which(name)
        if found:
            return Path(found)
    raise ChromiumMissingError(
        "no Chromium: `make programs` installs Debian's package as root; elsewhere install one, or"
        " name one by CHROMIUM"
    )


def ensure_chromium() -> Path:
    """As `find_chromium`, but installed if need be, telling so.

    Raises:
        ChromiumMissingError: it is not there and cannot be installed.
    """
    try:
        return find_chromium()
    except ChromiumMissingError:
        apt = shutil.which("apt-get")
        if apt is None or os.geteuid() != 0:
            raise
        print("Installing Chromium with apt-get (a minute)", flush=True)
        options = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for arguments in (("update",), ("install", "-y", "--no-install-recommends", "chromium")):
            done = subprocess.run(  # noqa: S603 - a fixed command
                (apt, "-qq", *arguments), env=options, capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise ChromiumMissingError(f"apt-get failed: {done.stderr[-500:]}") from None
        return find_chromium()
