"""The published envtest archive as a source: downloaded, verified by its SHA-512, unpacked.

A network that lets nothing out must cost seconds, not minutes, so connecting has a short limit.
"""

import hashlib
import shutil
import tarfile
from pathlib import Path

import aiohttp

from gateway_cli.controlplane.binaries import NAMES, SourceUnavailableError
from gateway_cli.controlplane.cache import BinaryCache
from gateway_cli.controlplane.pins import ARCHIVE_SHA512, ARCHIVE_VERSION
from gateway_cli.progress import Reporter

CONNECT_TIMEOUT_SECONDS = 5.0
READ_TIMEOUT_SECONDS = 30.0
_CHUNK = 1 << 20


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
            _check_hash(url, await _download(url, archive), wanted)
        _unpack(archive, staging)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    cache.install(staging, entry)
    return entry


def _check_hash(url: str, found: str, wanted: str) -> None:
    if found != wanted:
        raise SourceUnavailableError(
            f"{url} has SHA-512 {found[:16]}…, pinned is {wanted[:16]}…: not used"
        )


async def _download(url: str, target: Path) -> str:
    """Writes what `url` holds to `target` and returns its SHA-512 in hex."""
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
    return checksum.hexdigest()


def _unpack(archive: Path, folder: Path) -> None:
    """Takes the three programs out of the archive by name; nothing else of it is written."""
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
