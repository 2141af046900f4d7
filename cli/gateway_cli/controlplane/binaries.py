"""The binaries of a control plane as one value, and the errors of looking for them.

Used by the sources, by `resolution` and by the local run.
"""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

NAMES = ("etcd", "kube-apiserver", "kubectl")


class SourceUnavailableError(Exception):
    """One source cannot serve; the text says why and stands in the final error."""


class BinariesNotFoundError(Exception):
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
    found = {name: folder / name for name in NAMES if _is_program(folder / name)}
    if kubectl is not None:
        found.setdefault("kubectl", kubectl)
    missing = [name for name in NAMES if name not in found]
    if missing:
        raise SourceUnavailableError(f"{folder} has no executable {', '.join(missing)}")
    return ControlPlaneBinaries(
        etcd=found["etcd"],
        kube_apiserver=found["kube-apiserver"],
        kubectl=found["kubectl"],
        origin=origin,
    )


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
