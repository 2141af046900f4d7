"""`python -m gateway_apiserver api|media`: the API process or the media host.

Ends with 2 for settings, secrets or a cluster that cannot be used, saying which.
"""

import argparse
import asyncio
import sys
from collections.abc import Callable, Coroutine

from pydantic import ValidationError

from gateway_apiserver.app import create_app, create_health_app
from gateway_apiserver.compose import (
    NoCluster,
    SecretsUnusable,
    configure_logging,
    open_api,
    open_media,
)
from gateway_apiserver.media import create_media_app, create_media_health_app
from gateway_apiserver.server import Drain, serve, serve_health
from gateway_apiserver.settings import ApiSettings, MediaSettings


async def _serve_api() -> None:
    settings = ApiSettings()  # pyright: ignore[reportCallIssue]
    configure_logging(settings.log_level, settings.log_format)
    drain = Drain()
    async with open_api(settings) as parts:
        app, health = create_app(parts, drain), create_health_app(parts, drain)
        async with serve_health(health, settings.health_host, settings.health_port):
            await serve(
                app,
                settings.api_host,
                settings.api_port,
                drain,
                settings.linger_seconds,
                parts.connections,
            )


async def _serve_media() -> None:
    settings = MediaSettings()  # pyright: ignore[reportCallIssue]
    configure_logging(settings.log_level, settings.log_format)
    drain = Drain()
    async with open_media(settings) as parts:
        app, health = create_media_app(parts), create_media_health_app(parts, drain)
        async with serve_health(health, settings.health_host, settings.health_port):
            await serve(
                app,
                settings.media_host,
                settings.media_port,
                drain,
                settings.linger_seconds,
                parts.connections,
            )


_Process = Callable[[], Coroutine[None, None, None]]
_PROCESSES: dict[str, _Process] = {"api": _serve_api, "media": _serve_media}


def main() -> int:
    """Serves until a signal; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m gateway_apiserver")
    parser.add_argument("process", choices=_PROCESSES)
    process = _PROCESSES[parser.parse_args().process]
    try:
        asyncio.run(process())
    except ValidationError as error:
        for problem in error.errors(include_input=False):
            # what concerns several settings has no place and names them itself
            name = "_".join(["GATEWAY", *map(str, problem["loc"])]).upper()
            print(
                f"{name}: {problem['msg']}" if problem["loc"] else problem["msg"], file=sys.stderr
            )
        return 2
    except (NoCluster, SecretsUnusable) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
