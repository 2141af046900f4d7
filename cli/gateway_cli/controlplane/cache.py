"""The binaries of a control plane, and the project's cache of them.

Layout: `<cache home>/model-gateway/controlplane/<version>-<os>-<arch>/`. A folder of that name is
whole, because it gets the name by one rename when all is in it.
"""

import asyncio
import contextlib
import os
import platform
import shutil
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway_cli.machine import try_lock
from gateway_cli.progress import Reporter
from gateway_cli.session import CommandError

NAMES = ("etcd", "kube-apiserver", "kubectl")


class SourceUnavailableError(Exception):
    """One source cannot serve; the text says why and stands in the final error."""


class BinariesNotFoundError(CommandError):
    """No source can serve; the text lists all that were tried."""


@dataclass(frozen=True, slots=True)
class ControlPlaneBinaries:
    """Paths of the three programs, and in words where they come from."""

    etcd: Path
    kube_apiserver: Path
    kubectl: Path
    origin: str


def current_platform() -> str:
    """This machine as the archives name it, e.g. `linux-amd64`."""
    machine = platform.machine().lower()
    arch = {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
    return f"{platform.system().lower()}-{arch}"


def collect_binaries(
    folder: Path, origin: str, kubectl: Path | None = None
) -> ControlPlaneBinaries:
    """The binaries in `folder`; `kubectl` stands in where it has none.

    Raises:
        SourceUnavailableError: if one is missing or not executable.
    """
    found = {name: path for name in NAMES if os.access(path := folder / name, os.X_OK)}
    if kubectl is not None:
        found.setdefault("kubectl", kubectl)
    missing = [name for name in NAMES if name not in found]
    if missing:
        raise SourceUnavailableError(f"{folder} has no executable {', '.join(missing)}")
    return ControlPlaneBinaries(found["etcd"], found["kube-apiserver"], found["kubectl"], origin)


class BinaryCache:
    """The folder that keeps downloaded and built binaries between runs and checkouts."""

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
            if not try_lock(handle):
                async with reporter.stage("Another run is preparing the control plane; waiting"):
                    while not try_lock(handle):  # noqa: ASYNC110  it is another process
                        await asyncio.sleep(0.5)
            yield
