"""etcd, kube-apiserver and kubectl for the local run: found, downloaded, or built once and cached.

The first source that has them is used: `$KUBEBUILDER_ASSETS`, the cache, the published archive, a
build from Go modules. The archives are pinned by the SHA-512 of their release index
(envtest-releases.yaml of kubernetes-sigs/controller-tools), the build by the go.mod and go.sum of
tools/controlplane.

Layout of the cache: `<cache home>/model-gateway/controlplane/<version>-<os>-<arch>/`. A folder of
that name is complete: it gets the name by one rename when all is in it.
"""

import asyncio
import contextlib
import hashlib
import os
import platform
import shutil
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from gateway_cli.machine import BuildError, build_go_program, try_lock
from gateway_cli.progress import Reporter
from gateway_cli.session import CommandError

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
GO_PACKAGES = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
}
"""Binary to the Go package it is built from, in the order of building."""
NAMES = tuple(GO_PACKAGES)

# where the network drops packets, the download must fail in seconds, not minutes
_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=5, sock_connect=5, sock_read=30)
_CHUNK = 1 << 20


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


class BinaryCache:
    """The folder that keeps downloaded and built binaries between runs and checkouts."""

    def __init__(self, env: Mapping[str, str]) -> None:
        base = Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self.folder = base / "model-gateway" / "controlplane"

    def entry(self, version: str) -> Path:
        """Return the folder that a version has or would have."""
        return self.folder / f"{version}-{current_platform()}"

    def staging(self, version: str) -> Path:
        """Return the folder in which a version is put together.

        It outlives an interrupted run, so that the next one continues with the binaries it has.
        """
        folder = self.folder / f".{self.entry(version).name}.partial"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def install(self, version: str) -> Path:
        """Give the complete staging folder its name, with only the binaries in it."""
        staging, entry = self.staging(version), self.entry(version)
        for item in staging.iterdir():
            if item.name not in NAMES:
                shutil.rmtree(item) if item.is_dir() else item.unlink()
        shutil.rmtree(entry, ignore_errors=True)
        os.replace(staging, entry)
        return entry

    def find(self) -> ControlPlaneBinaries:
        """Return the complete entry of a version. SourceUnavailableError if there is none."""
        for version in (BUILD_VERSION, ARCHIVE_VERSION):
            with contextlib.suppress(SourceUnavailableError):
                return _collect(self.entry(version), f"cache ({version})")
        raise SourceUnavailableError(f"nothing for {current_platform()} in {self.folder}")

    @contextlib.asynccontextmanager
    async def lock(self, reporter: Reporter) -> AsyncIterator[None]:
        """Hold the cache while it is filled; a second run waits for the first and reports it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as handle:
            if not try_lock(handle):
                async with reporter.stage("Another run is preparing the control plane; waiting"):
                    while not try_lock(handle):  # noqa: ASYNC110  it is another process
                        await asyncio.sleep(0.5)
            yield


async def resolve_binaries(
    modules: Path, env: Mapping[str, str], reporter: Reporter
) -> ControlPlaneBinaries:
    """Return the binaries of the first source that has them, downloaded or built if need be.

    Args:
        modules: folder with the go.mod of the build.
        env: the environment; beside what is named above, `GATEWAY_ENVTEST_URL` replaces the
            address of the archives (a mirror), and empty switches the download off.
        reporter: reports what takes long.

    Raises:
        BinariesNotFoundError: lists the sources tried, with the reason of each.
    """
    cache, tried = BinaryCache(env), list[str]()

    async def take_first(
        *sources: tuple[str, Callable[[], Awaitable[ControlPlaneBinaries]]],
    ) -> ControlPlaneBinaries | None:
        for name, source in sources:
            try:
                return await source()
            except (BuildError, SourceUnavailableError) as error:
                tried.append(f"{name}: {error}")
        return None

    async def take_assets() -> ControlPlaneBinaries:
        if not (folder := env.get("KUBEBUILDER_ASSETS")):
            raise SourceUnavailableError("not set")
        return _collect(Path(folder), "$KUBEBUILDER_ASSETS", find_kubectl(env))

    async def look_in_cache() -> ControlPlaneBinaries:
        return cache.find()

    if binaries := await take_first(("$KUBEBUILDER_ASSETS", take_assets), ("cache", look_in_cache)):
        return binaries
    async with cache.lock(reporter):
        # another run may have filled the cache while this one waited
        if binaries := await take_first(
            ("cache", look_in_cache),
            ("published archive", lambda: _download_archive(cache, env, reporter)),
            ("build from Go modules", lambda: _build(cache, modules, env, reporter)),
        ):
            return binaries
    listing = "\n".join(f"  - {line}" for line in dict.fromkeys(tried))
    raise BinariesNotFoundError(
        "No etcd, kube-apiserver and kubectl could be found or made. Tried, in this order:\n"
        f"{listing}\n"
        "Set KUBEBUILDER_ASSETS to a folder that has them, or install a Go toolchain."
    )


def _collect(folder: Path, origin: str, kubectl: Path | None = None) -> ControlPlaneBinaries:
    """Return the binaries in `folder`; `kubectl` is used if the folder has none."""
    paths = {name: path for name in NAMES if os.access(path := folder / name, os.X_OK)}
    if kubectl is not None:
        paths.setdefault("kubectl", kubectl)
    if missing := [name for name in NAMES if name not in paths]:
        raise SourceUnavailableError(f"{folder} has no executable {', '.join(missing)}")
    return ControlPlaneBinaries(paths["etcd"], paths["kube-apiserver"], paths["kubectl"], origin)


async def _download_archive(
    cache: BinaryCache, env: Mapping[str, str], reporter: Reporter
) -> ControlPlaneBinaries:
    """Download the archive of this platform; nothing is kept of one that is not as pinned."""
    base_url, platform = env.get("GATEWAY_ENVTEST_URL", ARCHIVE_BASE_URL), current_platform()
    if not base_url:
        raise SourceUnavailableError("switched off by an empty address")
    if platform not in ARCHIVE_SHA512:
        raise SourceUnavailableError(f"no envtest archive is pinned for {platform}")
    url = f"{base_url}/envtest-{ARCHIVE_VERSION}/envtest-{ARCHIVE_VERSION}-{platform}.tar.gz"
    staging = cache.staging(ARCHIVE_VERSION)
    archive = staging / "archive.tar.gz"
    try:
        async with reporter.stage(f"Downloading the control plane ({ARCHIVE_VERSION}, {platform})"):
            await _download(url, archive, ARCHIVE_SHA512[platform])
        with tarfile.open(archive, "r:gz") as content:
            # the three programs by name, and nothing else of the archive
            for member in content:
                name = Path(member.name).name
                source = content.extractfile(member) if name in NAMES else None
                if source is not None:
                    (staging / name).write_bytes(source.read())
                    (staging / name).chmod(0o755)
        origin = f"envtest archive {ARCHIVE_VERSION}"
        _collect(staging, origin)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return _collect(cache.install(ARCHIVE_VERSION), origin)


async def _download(url: str, target: Path, wanted: str) -> None:
    """Write the content of `url`, whose SHA-512 in hex must be `wanted`, to `target`."""
    checksum = hashlib.sha512()
    try:
        async with (
            aiohttp.ClientSession(
                timeout=_TIMEOUT, trust_env=True, raise_for_status=True
            ) as session,
            session.get(url) as answer,
        ):
            with target.open("wb") as file:
                async for chunk in answer.content.iter_chunked(_CHUNK):
                    checksum.update(chunk)
                    file.write(chunk)
    except (aiohttp.ClientError, TimeoutError) as error:
        raise SourceUnavailableError(f"{url}: {error or type(error).__name__}") from error
    if (actual := checksum.hexdigest()) != wanted:
        raise SourceUnavailableError(
            f"{url} has SHA-512 {actual[:16]}…, pinned is {wanted[:16]}…: not used"
        )


async def _build(
    cache: BinaryCache, modules: Path, env: Mapping[str, str], reporter: Reporter
) -> ControlPlaneBinaries:
    """Build the three programs into the cache from the go.mod and go.sum in `modules`."""
    if not (modules / "go.mod").is_file():
        raise SourceUnavailableError(f"{modules} has no go.mod")
    staging = cache.staging(BUILD_VERSION)
    reporter.line(
        f"Building the control plane {BUILD_VERSION} from Go modules: once, then it is cached "
        "(3 to 5 minutes on 2 cores)"
    )
    major, minor = BUILD_VERSION.removeprefix("v").split(".")[:2]
    # without them clients see the version v0.0.0
    variables = {
        "k8s.io/component-base/version.gitVersion": BUILD_VERSION,
        "k8s.io/component-base/version.gitMajor": major,
        "k8s.io/component-base/version.gitMinor": minor,
        "k8s.io/client-go/pkg/version.gitVersion": BUILD_VERSION,
    }
    for number, (name, package) in enumerate(GO_PACKAGES.items(), start=1):
        if not (staging / name).is_file():
            async with reporter.stage(f"Building {name} ({number} of {len(GO_PACKAGES)})"):
                await build_go_program(modules, package, staging / name, env, variables)
    return _collect(cache.install(BUILD_VERSION), f"built from Go modules ({BUILD_VERSION})")
