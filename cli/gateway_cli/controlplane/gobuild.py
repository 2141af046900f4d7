"""A build from pinned Go modules as a source, where no archive can be had.

The modules are those of tools/controlplane or tools/s3server; the Go module proxy and the checksum
database of the caller's environment apply.
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
from gateway_cli.controlplane.pins import CONTROL_PLANE_BUILD, GoBuild
from gateway_cli.progress import Reporter


async def build_binaries(
    cache: BinaryCache,
    platform: str,
    modules: Path,
    env: Mapping[str, str],
    reporter: Reporter,
    build: GoBuild = CONTROL_PLANE_BUILD,
) -> Path:
    """Builds the programs of `build` into the cache and returns the cache's folder.

    Raises:
        SourceUnavailableError: if there is no Go toolchain, no module file, or a build fails.
    """
    go = shutil.which("go", path=env.get("PATH"))
    if go is None:
        raise SourceUnavailableError("there is no `go` in PATH")
    if not (modules / "go.mod").is_file():
        raise SourceUnavailableError(f"{modules} has no go.mod")
    entry = cache.entry(build.version, platform)
    staging = cache.staging(entry)
    source = staging / "source"
    source.mkdir(exist_ok=True)
    for name in ("go.mod", "go.sum"):
        shutil.copyfile(modules / name, source / name)
    reporter.line(
        f"Building {build.title} {build.version} from Go modules: once, then it is cached "
        f"({build.duration} on 2 cores)"
    )
    for number, (name, package) in enumerate(build.packages.items(), start=1):
        if not (staging / name).is_file():
            async with reporter.stage(f"Building {name} ({number} of {len(build.packages)})"):
                await _build(go, source, package, staging / name, env, build.linker_flags)
    cache.install(staging, entry)
    return entry


async def _build(
    go: str, source: Path, package: str, target: Path, env: Mapping[str, str], flags: str
) -> None:
    partial = target.with_name(f"{target.name}.partial")
    process = await asyncio.create_subprocess_exec(
        *(go, "build", "-trimpath", "-ldflags", flags, "-o", str(partial), package),
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
