"""Choice of the control-plane binaries: the first source that has them.

The order: `$KUBEBUILDER_ASSETS`, the cache, the published archive, a build from Go modules. Used
by the local run and by `gatewayctl local binaries`.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path

from gateway_cli.controlplane.cache import (
    BinariesNotFoundError,
    BinaryCache,
    ControlPlaneBinaries,
    SourceUnavailableError,
    collect_binaries,
    current_platform,
)
from gateway_cli.controlplane.pins import ARCHIVE_BASE_URL, ARCHIVE_VERSION, BUILD_VERSION
from gateway_cli.controlplane.sources import build_binaries, download_binaries
from gateway_cli.progress import Reporter


async def resolve_binaries(
    modules: Path, env: Mapping[str, str], reporter: Reporter
) -> ControlPlaneBinaries:
    """The binaries of the first source that serves, made or downloaded if need be.

    Args:
        modules: folder with the go.mod of the build.
        env: the environment; beside what is named above, `GATEWAY_ENVTEST_URL` replaces the
            address of the archives (a mirror), and empty switches the download off.
        reporter: says what takes long.

    Raises:
        BinariesNotFoundError: lists what was tried and why each did not serve.
    """
    tried: list[str] = []
    assets = env.get("KUBEBUILDER_ASSETS")
    if assets:
        try:
            return collect_binaries(Path(assets), "$KUBEBUILDER_ASSETS", find_kubectl(env))
        except SourceUnavailableError as error:
            tried.append(f"$KUBEBUILDER_ASSETS: {error}")
            reporter.line(f"$KUBEBUILDER_ASSETS is set and does not serve: {error}")
    else:
        tried.append("$KUBEBUILDER_ASSETS: not set")
    cache = BinaryCache.of_user(env)
    platform = current_platform()
    found = _look_in_cache(cache, platform)
    if found is not None:
        return found
    tried.append(f"cache: nothing for {platform} in {cache.folder}")
    async with cache.lock(reporter):
        # another run may have filled it while this one waited
        found = _look_in_cache(cache, platform)
        if found is not None:
            return found
        base_url = env.get("GATEWAY_ENVTEST_URL", ARCHIVE_BASE_URL)
        try:
            folder = await download_binaries(cache, platform, base_url, reporter)
            return collect_binaries(folder, f"envtest archive {ARCHIVE_VERSION}")
        except SourceUnavailableError as error:
            tried.append(f"published archive: {error}")
            reporter.line(f"  not to be had: {error}")
        try:
            folder = await build_binaries(cache, platform, modules, env, reporter)
            return collect_binaries(folder, f"built from Go modules ({BUILD_VERSION})")
        except SourceUnavailableError as error:
            tried.append(f"build from Go modules: {error}")
    listing = "\n".join(f"  - {line}" for line in tried)
    raise BinariesNotFoundError(
        "No etcd, kube-apiserver and kubectl could be found or made. Tried, in this order:\n"
        f"{listing}\n"
        "Set KUBEBUILDER_ASSETS to a folder that has them, or install a Go toolchain."
    )


def find_kubectl(env: Mapping[str, str]) -> Path | None:
    """`kubectl` from PATH, which serves where a source has none of its own."""
    found = shutil.which("kubectl", path=env.get("PATH"))
    return Path(found) if found else None


def _look_in_cache(cache: BinaryCache, platform: str) -> ControlPlaneBinaries | None:
    for version in (BUILD_VERSION, ARCHIVE_VERSION):
        try:
            return collect_binaries(cache.entry(version, platform), f"cache ({version})")
        except SourceUnavailableError:
            continue
    return None
