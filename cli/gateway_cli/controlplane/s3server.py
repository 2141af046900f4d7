"""Which S3 server the tests use: `versitygw` of PATH, else of the cache, else built for it.

Used by `gatewayctl local binaries --s3-server` and by the tests' fixture.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from gateway_cli.controlplane.binaries import (
    BinariesNotFoundError,
    SourceUnavailableError,
    current_platform,
)
from gateway_cli.controlplane.cache import BinaryCache
from gateway_cli.controlplane.gobuild import build_binaries
from gateway_cli.controlplane.pins import S3_SERVER_BUILD
from gateway_cli.progress import Reporter

NAME = "versitygw"


async def resolve_s3_server(modules: Path, env: Mapping[str, str], reporter: Reporter) -> Path:
    """The path of `versitygw`, built if need be.

    Args:
        modules: folder with the go.mod of the build.
        env: the environment.
        reporter: says what takes long.

    Raises:
        BinariesNotFoundError: says why it could not be built.
    """
    found = shutil.which(NAME, path=env.get("PATH"))
    if found:
        return Path(found)
    cache = BinaryCache.of_user(env, "s3server", (NAME,))
    platform = current_platform()
    program = cache.entry(S3_SERVER_BUILD.version, platform) / NAME
    if os.access(program, os.X_OK):
        return program
    async with cache.lock(reporter):
        # another run may have filled it while this one waited
        if not os.access(program, os.X_OK):
            try:
                await build_binaries(cache, platform, modules, env, reporter, S3_SERVER_BUILD)
            except SourceUnavailableError as error:
                raise BinariesNotFoundError(
                    f"There is no {NAME} in PATH, and it cannot be built: {error}"
                ) from error
    return program
