"""A build from pinned Go modules as a source, where no archive can be had.

The modules are those of tools/controlplane; the Go module proxy and the checksum database of the
caller's environment apply.
"""

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path

from gateway_cli.controlplane.binaries import SourceUnavailableError
from gateway_cli.controlplane.cache import BinaryCache
from gateway_cli.controlplane.pins import BUILD_VERSION, GO_PACKAGES
from gateway_cli.progress import Reporter

_VERSION_PACKAGES = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")


async def build_binaries(
    cache: BinaryCache,
    platform: str,
    modules: Path,
    env: Mapping[str, str],
    reporter: Reporter,
) -> Path:
    """Builds the three programs into the cache and returns the cache's folder.

    Raises:
        SourceUnavailableError: if there is no Go toolchain, no module file, or a build fails.
    """
    go = shutil.which("go", path=env.get("PATH"))
    if go is None:
        raise SourceUnavailableError("there is no `go` in PATH")
    if not (modules / "go.mod").is_file():
        raise SourceUnavailableError(f"{modules} has no go.mod")
    entry = cache.entry(BUILD_VERSION, platform)
    staging = cache.staging(entry)
    source = staging / "source"
    source.mkdir(exist_ok=True)
    for name in ("go.mod", "go.sum"):
        shutil.copyfile(modules / name, source / name)
    reporter.line(
        f"Building the control plane {BUILD_VERSION} from Go modules: once, then it is cached "
        "(3 to 5 minutes on 2 cores)"
    )
    for number, (name, package) in enumerate(GO_PACKAGES.items(), start=1):
        if not (staging / name).is_file():
            async with reporter.stage(f"Building {name} ({number} of {len(GO_PACKAGES)})"):
                await _build(go, source, package, staging / name, env)
    cache.install(staging, entry)
    return entry


async def _build(go: str, source: Path, package: str, target: Path, env: Mapping[str, str]) -> None:
    partial = target.with_name(f"{target.name}.partial")
    process = await asyncio.create_subprocess_exec(
        *(go, "build", "-ldflags", _linker_flags(), "-o", str(partial), package),
        cwd=source,
        env={**env, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false -mod=readonly"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = await process.communicate()
    finally:
        # an interrupted run must not leave compilers at work
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode != 0:
        tail = " / ".join(output.decode(errors="replace").strip().splitlines()[-5:])
        raise SourceUnavailableError(f"`go build {package}` failed: {tail}")
    os.replace(partial, target)


def _linker_flags() -> str:
    """Strips the binaries and tells them their version; without it clients see v0.0.0."""
    major, minor = BUILD_VERSION.removeprefix("v").split(".")[:2]
    base, client = _VERSION_PACKAGES
    values = {
        f"{base}.gitVersion": BUILD_VERSION,
        f"{base}.gitMajor": major,
        f"{base}.gitMinor": minor,
        f"{client}.gitVersion": BUILD_VERSION,
    }
    return " ".join(["-s", "-w", *(f"-X {name}={value}" for name, value in values.items())])
