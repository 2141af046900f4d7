"""Programs for tests and pictures that are in no package of Python: found, or built once.

`python -m tools.programs` makes those for tests; a name after it prints that one's path. The
versions are pinned in `tools/<modules>/` by go.mod and go.sum, or by package.json and its lock
file; Go's module proxy and checksum database and npm's registry are those of the caller's
environment. What is made lies below the user's cache and serves every checkout.
"""

import asyncio
import fcntl
import hashlib
import os
import platform
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.debian import NAMES, PackageMissingError, ensure_installed

from gateway_cli.machine import BuildError, build_go_program, run_program

TOOLS = Path(__file__).resolve().parent


class ProgramMissingError(Exception):
    """The program is not there and could not be built; the text says why."""


@dataclass(frozen=True, slots=True)
class Program:
    """One program: its Go package, the folder of tools/ that pins it, and whether PATH's will do.

    Without a package it is a folder of npm's packages. One that is not for tests is made when it is
    asked for.
    """

    package: str | None
    modules: str
    any_version: bool = False
    tags: str = ""
    is_for_tests: bool = True

    @property
    def pins(self) -> tuple[str, ...]:
        """The files that pin its versions."""
        if self.package is None:
            return ("package.json", "package-lock.json")
        own = ("main.go",) if self.package == "." else ()
        return ("go.mod", "go.sum", *own)


PROGRAMS = {
    "etcdutl": Program("go.etcd.io/etcd/etcdutl/v3", "etcd", any_version=True),
    "go-proxy": Program(".", "goproxy"),
    "helm": Program("helm.sh/helm/v3/cmd/helm", "helm", any_version=True),
    "helm-unittest": Program("github.com/helm-unittest/helm-unittest/cmd/helm-unittest", "helm"),
    "mcp-clients": Program(None, "mcp"),
    "node-sdks": Program(None, "node"),
    "oidc-provider": Program(None, "oidc"),
    # without service discovery, which is most of what it is built from
    "prometheus": Program(
        "github.com/prometheus/prometheus/cmd/prometheus",
        "prometheus",
        any_version=True,
        tags="remove_all_sd",
        is_for_tests=False,
    ),
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
    if not cached.exists():
        raise ProgramMissingError(
            f"no {name}: `make programs-full` builds it, or {variable} names one"
        )
    return cached


def ensure_program(name: str) -> Path:
    """As `find_program`, but made if need be, telling so.

    Raises:
        ProgramMissingError: there is no Go toolchain or no npm, or it fails.
    """
    try:
        return find_program(name)
    except ProgramMissingError:
        target = _place(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        with (target.parent / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # another checkout may have built it while this one waited
            if not target.exists():
                _build(name, target)
        return target


def _place(name: str) -> Path:
    """The file in the cache that these very pins have or would have."""
    modules = TOOLS / PROGRAMS[name].modules
    pins = b"".join((modules / file).read_bytes() for file in PROGRAMS[name].pins)
    digest = hashlib.sha256(pins).hexdigest()[:12]
    home = os.environ.get("XDG_CACHE_HOME")
    cache = (Path(home) if home else Path.home() / ".cache") / "model-gateway" / "programs"
    return cache / f"{name}-{digest}-{platform.system()}-{platform.machine()}".lower()


def _build(name: str, target: Path) -> None:
    program = PROGRAMS[name]
    kind = "Go modules" if program.package else "npm packages"
    print(f"Building {name} from {kind}: once, then it is cached", flush=True)
    begin = time.monotonic()
    try:
        modules = TOOLS / program.modules
        if program.package:
            asyncio.run(
                build_go_program(modules, program.package, target, os.environ, tags=program.tags)
            )
        else:
            asyncio.run(_install_packages([modules / file for file in program.pins], target))
    except BuildError as error:
        raise ProgramMissingError(f"no {name}: {error}") from error
    print(f"✓ {name} built in {time.monotonic() - begin:.0f} s", flush=True)


async def _install_packages(pins: Sequence[Path], target: Path) -> None:
    """Install the packages of a lock file into the folder `target`. BuildError."""
    npm = shutil.which("npm")
    if npm is None:
        raise BuildError("there is no `npm` in PATH")
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    for pin in pins:
        shutil.copy(pin, partial)
    options = ("--ignore-scripts", "--no-audit", "--no-fund")
    done = await run_program(npm, "ci", *options, cwd=partial)
    if done.code != 0:
        raise BuildError("`npm ci` failed: " + " / ".join(done.errors.splitlines()[-5:]))
    partial.rename(target)


def main() -> int:
    """0 if all that were asked for are there."""
    names = sys.argv[1:]
    try:
        wanted = [name for name, program in PROGRAMS.items() if program.is_for_tests]
        for name in names or (*wanted, *NAMES):
            path = ensure_installed(name) if name in NAMES else ensure_program(name)
            if names:
                print(path)
    except (ProgramMissingError, PackageMissingError) as error:
        print(f"✗ {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
