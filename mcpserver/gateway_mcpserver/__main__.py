"""`python -m gateway_mcpserver`: the MCP process.

Ends with 2 for settings, secrets or a cluster that cannot be used, saying which.
"""

import asyncio
import gc
import sys

from pydantic import ValidationError

from gateway_core.kube.connection import NoCluster
from gateway_core.kube.secrets import SecretsUnusable
from gateway_core.observability.logs import configure_logging
from gateway_core.settings import list_problems
from gateway_mcpserver.app import create_app, create_health_app
from gateway_mcpserver.compose import open_mcp
from gateway_mcpserver.settings import McpSettings
from gateway_web.context import Drain
from gateway_web.server import serve, serve_health


def main() -> int:
    """Serves until a signal; the exit status."""
    try:
        asyncio.run(_serve(McpSettings()))  # pyright: ignore[reportCallIssue]
    except ValidationError as error:
        print(*list_problems(error), sep="\n", file=sys.stderr)
        return 2
    except (NoCluster, SecretsUnusable) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


async def _serve(settings: McpSettings) -> None:
    configure_logging(settings.log_level, settings.log_format)
    drain = Drain()
    async with open_mcp(settings) as parts:
        app, health = create_app(parts, drain), create_health_app(parts, drain)
        gc.collect()
        gc.freeze()
        async with serve_health(health, settings.health_host, settings.health_port):
            await serve(
                app,
                settings.mcp_host,
                settings.mcp_port,
                drain,
                settings.linger_seconds,
                parts.connections,
            )


if __name__ == "__main__":
    sys.exit(main())
