"""Programs for tests that are Go modules and in no package of Python: found, or built once.

`python -m tools.programs` makes all of them; a name after it prints that one's path. The versions
are pinned by go.mod and go.sum in `tools/<modules>/`; the Go module proxy and the checksum database
of the caller's environment apply. What is built lies below the user's cache and serves every
checkout.
"""

import asyncio
import fcntl
import hashlib
import os
import platform
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from gateway_cli.machine import BuildError, build_go_program

TOOLS = Path(__file__).resolve().parent


class ProgramMissingError(Exception):
    """The program is not there and could not be built; the text says why."""


@dataclass(frozen=True, slots=True)
class Program:
    """One program: its package, the folder of tools/ that pins it, and whether PATH's will do."""

    package: str
    modules: str
    any_version: bool = False


PROGRAMS = {
    "helm": Program("helm.sh/helm/v3/cmd/helm", "helm", any_version=True),
    "helm-unittest": Program("github.com/helm-unittest/helm-unittest/cmd/helm-unittest", "helm"),
    "versitygw": Program(
        "github.com/versity/versitygw/cmd/versitygw", "s3server", any_version=True
    ),
}


def find_program(name: str) -> Path:
    """Where the program is: `$<NAME>`, PATH where any version will do, else the cache.

    Raises:
        ProgramMissingError: nothing was found; it is not built here, since that takes minutes.
    """
    variable = name.upper().replace("-", "_")
    given = os.environ.get(variable)
    if given:
        return Path(given)
    on_path = shutil.which(name) if PROGRAMS[name].any_version else None
    if on_path:
        return Path(on_path)
    cached = _place(name)
    if not cached.is_file():
        raise ProgramMissingError(f"no {name}: `make programs` builds it, or {variable} names one")
    return cached


def ensure_program(name: str) -> Path:
    """As `find_program`, but built if need be, telling so.

    Raises:
        ProgramMissingError: there is no Go toolchain, or the build fails.
    """
    try:
        return find_program(name)
    except ProgramMissingError:
        target = _place(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        with (target.parent / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # another checkout may have built it while this one waited
            if not target.is_file():
                _build(name, target)
        return target


def _place(name: str) -> Path:
    """The file in the cache that these very pins have or would have."""
    modules = TOOLS / PROGRAMS[name].modules
    pins = b"".join((modules / file).read_bytes() for file in ("go.mod", "go.sum"))
    digest = hashlib.sha256(pins).hexdigest()[:12]
    home = os.environ.get("XDG_CACHE_HOME")
    cache = (Path(home) if home else Path.home() / ".cache") / "model-gateway" / "programs"
    return cache / f"{name}-{digest}-{platform.system()}-{platform.machine()}".lower()


def _build(name: str, target: Path) -> None:
    program = PROGRAMS[name]
    print(f"Building {name} from Go modules: once, then it is cached", flush=True)
    begin = time.monotonic()
    try:
        modules = TOOLS / program.modules
        asyncio.run(build_go_program(modules, program.package, target, os.environ))
    except BuildError as error:
        raise ProgramMissingError(f"no {name}: {error}") from error
    print(f"✓ {name} built in {time.monotonic() - begin:.0f} s", flush=True)


def main() -> int:
    """0 if all that were asked for are there."""
    names = sys.argv[1:]
    try:
        for name in names or PROGRAMS:
            path = ensure_program(name)
            if names:
                print(path)
    except ProgramMissingError as error:
        print(f"✗ {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
