"""The project's cache of control-plane binaries, and the lock that lets one run fill it.

Layout: `<cache home>/model-gateway/controlplane/<version>-<os>-<arch>/`. A folder of that name is
whole, because it gets the name by one rename when all is in it.
"""

import asyncio
import contextlib
import fcntl
import os
import shutil
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from gateway_cli.controlplane.binaries import NAMES
from gateway_cli.progress import Reporter


class BinaryCache:
    """Where downloaded and built binaries are kept between runs and checkouts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def of_user(cls, env: Mapping[str, str]) -> "BinaryCache":
        """The cache below `$XDG_CACHE_HOME`, else below `~/.cache`."""
        home = env.get("XDG_CACHE_HOME")
        base = Path(home) if home else Path.home() / ".cache"
        return cls(base / "model-gateway" / "controlplane")

    def entry(self, version: str, platform: str) -> Path:
        """The folder that a version has or would have."""
        return self.folder / f"{version}-{platform}"

    def staging(self, entry: Path) -> Path:
        """The folder in which `entry` is put together.

        It outlives an interrupted run, so that the next one goes on with the binaries it has.
        """
        folder = entry.with_name(f".{entry.name}.partial")
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def install(self, staging: Path, entry: Path) -> None:
        """Gives a complete staging folder its name, with nothing but the binaries in it."""
        for item in staging.iterdir():
            if item.name not in NAMES:
                shutil.rmtree(item) if item.is_dir() else item.unlink()
        shutil.rmtree(entry, ignore_errors=True)
        os.replace(staging, entry)

    @contextlib.asynccontextmanager
    async def lock(self, reporter: Reporter) -> AsyncIterator[None]:
        """Held while the cache is filled; a second run waits for the first and says so."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as handle:
            if not _try_lock(handle.fileno()):
                async with reporter.stage("Another run is preparing the control plane; waiting"):
                    while not _try_lock(handle.fileno()):  # noqa: ASYNC110  it is another process
                        await asyncio.sleep(0.5)
            yield


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
