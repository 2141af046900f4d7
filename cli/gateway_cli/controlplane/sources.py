"""The sources that make control-plane binaries: a published archive, or a build from Go modules."""

import hashlib
import os
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path

import aiohttp

from gateway_cli.controlplane.cache import NAMES, BinaryCache, SourceUnavailableError
from gateway_cli.controlplane.pins import (
    ARCHIVE_SHA512,
    ARCHIVE_VERSION,
    BUILD_VERSION,
    GO_PACKAGES,
)
from gateway_cli.machine import run_program
from gateway_cli.progress import Reporter

# a network that lets nothing out must cost seconds, not minutes
CONNECT_TIMEOUT_SECONDS = 5.0
READ_TIMEOUT_SECONDS = 30.0
_CHUNK = 1 << 20
_VERSION_PACKAGES = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")


async def download_binaries(
    cache: BinaryCache, platform: str, base_url: str, reporter: Reporter
) -> Path:
    """Downloads the archive of `platform` into the cache and returns the cache's folder.

    Raises:
        SourceUnavailableError: if there is no archive for the platform, it cannot be had, or its
            SHA-512 is not the pinned one (then nothing of it is kept).
    """
    if not base_url:
        raise SourceUnavailableError("switched off by an empty address")
    wanted = ARCHIVE_SHA512.get(platform)
    if wanted is None:
        raise SourceUnavailableError(f"no envtest archive is pinned for {platform}")
    url = f"{base_url}/envtest-{ARCHIVE_VERSION}/envtest-{ARCHIVE_VERSION}-{platform}.tar.gz"
    entry = cache.entry(ARCHIVE_VERSION, platform)
    staging = cache.staging(entry)
    archive = staging / "archive.tar.gz"
    try:
        async with reporter.stage(f"Downloading the control plane ({ARCHIVE_VERSION}, {platform})"):
            await _download(url, archive, wanted)
        _unpack(archive, staging)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    cache.install(staging, entry)
    return entry


async def build_binaries(
    cache: BinaryCache,
    platform: str,
    modules: Path,
    env: Mapping[str, str],
    reporter: Reporter,
) -> Path:
    """Builds the three programs into the cache and returns the cache's folder.

    `modules` has the go.mod and go.sum; the Go module proxy and checksum database of `env` apply.

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


async def _download(url: str, target: Path, wanted: str) -> None:
    """Writes the content of `url`, whose SHA-512 in hex must be `wanted`, to `target`."""
    timeout = aiohttp.ClientTimeout(
        total=None,
        connect=CONNECT_TIMEOUT_SECONDS,
        sock_connect=CONNECT_TIMEOUT_SECONDS,
        sock_read=READ_TIMEOUT_SECONDS,
    )
    checksum = hashlib.sha512()
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=True) as session,
            session.get(url) as answer,
        ):
            if answer.status != 200:
                raise SourceUnavailableError(f"{url} answers {answer.status}")
            with target.open("wb") as file:
                async for chunk in answer.content.iter_chunked(_CHUNK):
                    checksum.update(chunk)
                    file.write(chunk)
    except (aiohttp.ClientError, TimeoutError) as error:
        raise SourceUnavailableError(f"{url}: {error or type(error).__name__}") from error
    found = checksum.hexdigest()
    if found != wanted:
        raise SourceUnavailableError(
            f"{url} has SHA-512 {found[:16]}…, pinned is {wanted[:16]}…: not used"
        )


def _unpack(archive: Path, folder: Path) -> None:
    """Extracts the three programs by name, and nothing else of the archive."""
    with tarfile.open(archive, "r:gz") as content:
        for member in content:
            name = Path(member.name).name
            if name not in NAMES or not member.isfile():
                continue
            source = content.extractfile(member)
            if source is not None:
                with (folder / name).open("wb") as target:
                    shutil.copyfileobj(source, target)
                (folder / name).chmod(0o755)
    missing = [name for name in NAMES if not (folder / name).is_file()]
    if missing:
        raise SourceUnavailableError(f"the archive has no {', '.join(missing)}")


async def _build(go: str, source: Path, package: str, target: Path, env: Mapping[str, str]) -> None:
    partial = target.with_name(f"{target.name}.partial")
    done = await run_program(
        *(go, "build", "-ldflags", _linker_flags(), "-o", str(partial), package),
        cwd=source,
        env={**env, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false -mod=readonly"},
    )
    if done.code != 0:
        tail = " / ".join(done.errors.splitlines()[-5:])
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
