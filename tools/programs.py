"""Programs for tests and pictures that are in no package of Python: found, or made once.

`python -m tools.programs` makes those for tests; a name after it prints that one's path. The
versions are pinned in `tools/<modules>/` by go.mod and go.sum, or by package.json and its lock
file; Go's module proxy and checksum database and npm's registry are those of the caller's
environment. What is made lies below the user's cache and serves every checkout. Debian's packages
are installed with apt-get where this runs as root; Playwright brings no browser of its own.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tools.processes import CommandFailed, run_command

from gateway_cli.local.binaries import BUILD_VERSION, find_cache

CONTROL_PLANE = "controlplane"
TOOLS = Path(__file__).resolve().parent
DEBIAN = {
    "chromium": ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome"),
    "nginx": ("nginx", "/usr/sbin/nginx"),
}
"""The programs of each package of Debian, by preference."""


class ProgramMissingError(Exception):
    """The program is not there and could not be made; the text says why, or what to do."""


@dataclass(frozen=True, slots=True)
class Program:
    """One program: its Go package, the folder of tools/ that pins it, and whether PATH's will do.

    Without a package it is a folder of npm's packages, or of PyPI's where requirements are what
    pins it. One that is not for tests is made when it is asked for.
    """

    package: str | None
    modules: str
    any_version: bool = False
    tags: str = ""
    is_for_tests: bool = True

    @property
    def pins(self) -> tuple[str, ...]:
        """The files that pin its versions."""
        if (TOOLS / self.modules / "requirements.txt").exists():
            return ("requirements.txt",)
        if self.package is None:
            return ("package.json", "package-lock.json")
        return ("go.mod", "go.sum", "main.go") if self.package == "." else ("go.mod", "go.sum")


PROGRAMS = {
    # of their own, as they want older versions of what tests use
    "agent-packages": Program(None, "agents"),
    "codex": Program(None, "codex"),
    "etcd": Program("go.etcd.io/etcd/server/v3", CONTROL_PLANE, is_for_tests=False),
    "etcdutl": Program("go.etcd.io/etcd/etcdutl/v3", "etcd", any_version=True),
    "go-proxy": Program(".", "goproxy"),
    "helm": Program("helm.sh/helm/v3/cmd/helm", "helm", any_version=True),
    "helm-unittest": Program("github.com/helm-unittest/helm-unittest/cmd/helm-unittest", "helm"),
    "kube-apiserver": Program(
        "k8s.io/kubernetes/cmd/kube-apiserver", CONTROL_PLANE, is_for_tests=False
    ),
    "kubectl": Program("k8s.io/kubernetes/cmd/kubectl", CONTROL_PLANE, is_for_tests=False),
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

_MAJOR, _MINOR, _ = BUILD_VERSION.removeprefix("v").split(".")
_VARIABLES = {
    CONTROL_PLANE: {
        "k8s.io/component-base/version.gitVersion": BUILD_VERSION,
        "k8s.io/component-base/version.gitMajor": _MAJOR,
        "k8s.io/component-base/version.gitMinor": _MINOR,
        "k8s.io/client-go/pkg/version.gitVersion": BUILD_VERSION,
    },
    "helm": {
        "helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor": _MAJOR,
        "helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor": _MINOR,
    },
}
"""Versions that a build sets, as the releases of these modules do: clients of the control plane see
v0.0.0 without them, and `helm template` takes the cluster for one of Kubernetes 1.20."""
_GO = {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false -mod=readonly"}


def find_program(name: str) -> Path:
    """Return the path of a program: `$<NAME>`, PATH where any version will do, else the cache.

    Raises:
        ProgramMissingError: nothing was found; it is not made here, since that takes minutes.
    """
    variable = name.upper().replace("-", "_")
    if given := os.environ.get(variable):
        return Path(given)
    program = PROGRAMS.get(name)
    names = DEBIAN.get(name, (name,) if program and program.any_version else ())
    if on_path := next(filter(None, map(shutil.which, names)), None):
        return Path(on_path)
    if program and (cached := _place(name)).exists():
        return cached
    raise ProgramMissingError(f"no {name}: `make programs-full` makes it, or {variable} names one")


def ensure_program(name: str) -> Path:
    """Return the path of a program that is made if need be, which is printed.

    Raises:
        ProgramMissingError: there is no Go toolchain, no npm or no apt-get, or it fails.
    """
    try:
        return find_program(name)
    except ProgramMissingError:
        begin = time.monotonic()
        print(f"Building {name}: once, then it is kept", flush=True)
        try:
            if name in DEBIAN:
                _install_debian_package(name)
            else:
                _build(name, _place(name))
        except CommandFailed as error:
            raise ProgramMissingError(f"no {name}: {error}") from error
        print(f"✓ {name} built in {time.monotonic() - begin:.0f} s", flush=True)
        return find_program(name)


def _place(name: str) -> Path:
    """Return the file in the cache that these very pins have or would have."""
    modules = TOOLS / PROGRAMS[name].modules
    if modules.name == CONTROL_PLANE:
        # the local run looks there; a folder of a version has all three
        return find_cache(os.environ, BUILD_VERSION) / name
    pins = b"".join((modules / file).read_bytes() for file in PROGRAMS[name].pins)
    pins += " ".join(_list_variables(PROGRAMS[name].modules)).encode()
    digest = hashlib.sha256(pins).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    system = f"{platform.system()}-{platform.machine()}"
    if PROGRAMS[name].pins == ("requirements.txt",):
        system += f"-{sys.implementation.cache_tag}"
    return cache / "model-gateway" / "programs" / f"{name}-{digest}-{system}".lower()


def _list_variables(modules: str) -> list[str]:
    return [f"-X {name}={value}" for name, value in _VARIABLES.get(modules, {}).items()]


def _build(name: str, target: Path) -> None:
    program, modules = PROGRAMS[name], TOOLS / PROGRAMS[name].modules
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # another checkout may have built it while this one waited
        if target.exists():
            return
        partial = target.with_name(f"{target.name}.partial")
        if program.package:
            link = ["-s", "-w", *_list_variables(program.modules)]
            flags = ("-ldflags", " ".join(link), "-tags", program.tags, "-o", str(partial))
            env = {**os.environ, **_GO}
            run_command("go", "build", *flags, program.package, cwd=modules, env=env)
            partial.rename(target)
            return
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        for pin in program.pins:
            shutil.copy(modules / pin, partial)
        if program.pins == ("requirements.txt",):
            install = ("install", "--quiet", "--require-hashes", "--no-deps", "--target", ".")
            run_command(
                sys.executable, "-m", "pip", *install, "-r", "requirements.txt", cwd=partial
            )
        else:
            run_command("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", cwd=partial)
        partial.rename(target)


def _install_debian_package(name: str) -> None:
    if os.geteuid() != 0:
        raise CommandFailed("install the package as root, or name a program by a variable")
    # in runlevel 1 the package starts no server
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    run_command("apt-get", "-qq", "update", env=env)
    run_command("apt-get", "-qq", "install", "-y", "--no-install-recommends", name, env=env)


def main() -> int:
    """Return 0 if all that were asked for are there."""
    wanted = [name for name, program in PROGRAMS.items() if program.is_for_tests]
    try:
        for name in sys.argv[1:] or (*wanted, *DEBIAN):
            path = ensure_program(name)
            if sys.argv[1:]:
                print(path)
    except ProgramMissingError as error:
        print(f"✗ {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
