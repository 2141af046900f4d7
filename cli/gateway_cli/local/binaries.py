"""etcd, kube-apiserver and kubectl for the local run: found, downloaded, or built once and cached.

The first source that has them is used: `$KUBEBUILDER_ASSETS`, the cache, the published archive, a
build from Go modules by tools/programs.py. The archives are pinned by the SHA-512 of their release
index (envtest-releases.yaml of kubernetes-sigs/controller-tools).
"""

import contextlib
import hashlib
import os
import platform
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from gateway_cli.machine import run_program
from gateway_cli.progress import Reporter
from gateway_cli.session import CommandError
from gateway_core.failures import describe_failure

BUILD_VERSION = "v1.36.3"
"""Kubernetes version of the modules in tools/controlplane; the binaries must be told it."""
ARCHIVE_VERSION = "v1.36.2"
"""The published envtest archive nearest to `BUILD_VERSION`."""
ARCHIVE_BASE_URL = "https://github.com/kubernetes-sigs/controller-tools/releases/download"
ARCHIVE_SHA512 = {
    "darwin-amd64": (
        "b4fe9f973cd1992e3880f8b230ed32c0c243b83371591e3e3315f4404df2cdbe"
        "f8ee94eeb9bb245b7e5feb987d5c4a76c43e0877654ab73f00d7bbc2b9984514"
    ),
    "darwin-arm64": (
        "9278f9e5af556b2f1f2d139769c1f0d717c7b4426917fdebdba898bcb725a916"
        "e4910d6160886194ff9be9589ea7c5c32c2b8ae0754703874b7c8ba8ddfc41ce"
    ),
    "linux-amd64": (
        "ea743186c8a799f5cf8faf16969f86189d003cb7d130e0ac4b58789f1e5748dc"
        "f30ebe91c837a10d5ac415383da3e10b9e64d65785c938c23e739781cfb76f08"
    ),
    "linux-arm64": (
        "2d72ee985a8e262a3c57dc9f7f0fd891f6a8c7bf7ebaa2db6dc6d8eac8ae2818"
        "1afe51c1f368b67756cdb40b10de9b205609e1726e5f27f7c6d824dd9c6649ac"
    ),
}
NAMES = ("etcd", "kube-apiserver", "kubectl")

# where the network drops packets, the download must fail in seconds, not minutes
_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=5, sock_connect=5, sock_read=30)
_CHUNK = 1 << 20
_NOT_SET = "not set"


class SourceUnavailableError(Exception):
    """One source has no usable binaries; the final error quotes the text."""


class BinariesNotFoundError(CommandError):
    """No source has the binaries; the text lists all that were tried."""


@dataclass(frozen=True, slots=True)
class ControlPlaneBinaries:
    """Paths of the three programs, and in words where they come from."""

    etcd: Path
    kube_apiserver: Path
    kubectl: Path
    origin: str


def current_platform() -> str:
    """Return this machine as the archives name it, e.g. `linux-amd64`."""
    machine = platform.machine().lower()
    arch = {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
    return f"{platform.system().lower()}-{arch}"


def find_kubectl(env: Mapping[str, str]) -> Path | None:
    """Return `kubectl` from PATH, for a source that has none of its own."""
    path = shutil.which("kubectl", path=env.get("PATH"))
    return Path(path) if path else None


def find_cache(env: Mapping[str, str], version: str) -> Path:
    """Return the folder of a version in the user's cache, which all checkouts share."""
    base = Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "model-gateway" / "controlplane" / f"{version}-{current_platform()}"


async def resolve_binaries(
    root: Path, env: Mapping[str, str], reporter: Reporter
) -> ControlPlaneBinaries:
    """Return the binaries of the first source that has them, downloaded or built if need be.

    Args:
        root: the checkout, whose tools build them.
        env: the environment; beside what is named above, `GATEWAY_ENVTEST_URL` replaces the
            address of the archives (a mirror), and empty switches the download off.
        reporter: reports what takes long.

    Raises:
        BinariesNotFoundError: lists the sources tried, with the reason of each.
    """
    tried = []
    sources: dict[str, Callable[[], Awaitable[ControlPlaneBinaries]]] = {
        "$KUBEBUILDER_ASSETS": lambda: _take_assets(env),
        "cache": lambda: _look_in_cache(env),
        "published archive": lambda: _download_archive(env, reporter),
        "build from Go modules": lambda: _build(root, env, reporter),
    }
    for name, find in sources.items():
        try:
            return await find()
        except SourceUnavailableError as error:
            tried.append(f"  - {name}: {error}")
            if str(error) != _NOT_SET:
                reporter.line(f"  {name}: {error}")
    raise BinariesNotFoundError(
        "\n".join(
            (
                "No etcd, kube-apiserver and kubectl could be found or made. Tried, in this order:",
                *tried,
                "Set KUBEBUILDER_ASSETS to a folder that has them, or install a Go toolchain.",
            )
        )
    )


async def _take_assets(env: Mapping[str, str]) -> ControlPlaneBinaries:
    if not (folder := env.get("KUBEBUILDER_ASSETS")):
        raise SourceUnavailableError(_NOT_SET)
    return _collect(Path(folder), "$KUBEBUILDER_ASSETS", find_kubectl(env))


async def _look_in_cache(env: Mapping[str, str]) -> ControlPlaneBinaries:
    for version in (BUILD_VERSION, ARCHIVE_VERSION):
        with contextlib.suppress(SourceUnavailableError):
            return _collect(find_cache(env, version), f"cache ({version})")
    folder = find_cache(env, "").parent
    raise SourceUnavailableError(f"nothing for {current_platform()} in {folder}")


def _collect(folder: Path, origin: str, kubectl: Path | None = None) -> ControlPlaneBinaries:
    """Return the binaries in `folder`; `kubectl` is used if the folder has none."""
    paths = {name: path for name in NAMES if os.access(path := folder / name, os.X_OK)}
    if kubectl is not None:
        paths.setdefault("kubectl", kubectl)
    if missing := [name for name in NAMES if name not in paths]:
        raise SourceUnavailableError(f"{folder} has no executable {', '.join(missing)}")
    return ControlPlaneBinaries(paths["etcd"], paths["kube-apiserver"], paths["kubectl"], origin)


async def _download_archive(env: Mapping[str, str], reporter: Reporter) -> ControlPlaneBinaries:
    """Download the archive of this platform; nothing is kept of one that is not as pinned."""
    base_url, platform = env.get("GATEWAY_ENVTEST_URL", ARCHIVE_BASE_URL), current_platform()
    if not base_url:
        raise SourceUnavailableError("switched off by an empty address")
    if platform not in ARCHIVE_SHA512:
        raise SourceUnavailableError(f"no envtest archive is pinned for {platform}")
    url = f"{base_url}/envtest-{ARCHIVE_VERSION}/envtest-{ARCHIVE_VERSION}-{platform}.tar.gz"
    folder = find_cache(env, ARCHIVE_VERSION)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".") as name:
        archive = os.path.join(name, "archive.tar.gz")
        async with reporter.stage(f"Downloading the control plane ({ARCHIVE_VERSION}, {platform})"):
            await _download(url, archive, ARCHIVE_SHA512[platform])
        _unpack(archive, Path(name), folder)
    return _collect(folder, f"envtest archive {ARCHIVE_VERSION}")


def _unpack(archive: str, place: Path, folder: Path) -> None:
    """Make `folder` of the three programs by name, and of nothing else of the archive."""
    unpacked = place / "unpacked"
    unpacked.mkdir()
    with tarfile.open(archive, "r:gz") as content:
        for member in content:
            program = unpacked / Path(member.name).name
            source = content.extractfile(member) if program.name in NAMES else None
            if source is not None:
                program.write_bytes(source.read())
                program.chmod(0o755)
    _collect(unpacked, "the archive")
    # another run may have made the folder meanwhile
    with contextlib.suppress(OSError):
        unpacked.rename(folder)


async def _download(url: str, target: str, wanted: str) -> None:
    """Write the content of `url`, whose SHA-512 in hex must be `wanted`, to `target`."""
    checksum = hashlib.sha512()
    try:
        async with (
            aiohttp.ClientSession(
                timeout=_TIMEOUT, trust_env=True, raise_for_status=True
            ) as session,
            session.get(url) as answer,
        ):
            with open(target, "wb") as file:  # noqa: ASYNC230 - of its own folder
                async for chunk in answer.content.iter_chunked(_CHUNK):
                    checksum.update(chunk)
                    file.write(chunk)
    except (aiohttp.ClientError, TimeoutError) as error:
        raise SourceUnavailableError(f"{url}: {describe_failure(error)}") from error
    if (actual := checksum.hexdigest()) != wanted:
        raise SourceUnavailableError(
            f"{url} has SHA-512 {actual[:16]}…, pinned is {wanted[:16]}…: not used"
        )


async def _build(root: Path, env: Mapping[str, str], reporter: Reporter) -> ControlPlaneBinaries:
    """Build what the cache lacks; a second run waits for the first."""
    text = f"Building the control plane {BUILD_VERSION}, once: 3 to 5 minutes on 2 cores"
    async with reporter.stage(text):
        done = await run_program(sys.executable, "-m", "tools.programs", *NAMES, cwd=root, env=env)
    if done.code:
        raise SourceUnavailableError(done.errors)
    origin = f"built from Go modules ({BUILD_VERSION})"
    return _collect(find_cache(env, BUILD_VERSION), origin)
