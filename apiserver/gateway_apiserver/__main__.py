"""`python -m gateway_apiserver api|media`: the API process or the media host.

`api --workers N` runs N API processes on one port. Ends with 2 for settings, secrets or a cluster
that cannot be used, saying which.
"""

import argparse
import asyncio
import os
import socket
import sys
from typing import Any

from pydantic import ValidationError

from gateway_apiserver.settings import ApiSettings, MediaSettings
from gateway_core.kube.connection import NoCluster
from gateway_core.kube.secrets import SecretsUnusable


def main() -> int:
    """Serves until a signal; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m gateway_apiserver")
    parser.add_argument("process", choices=("api", "media"))
    parser.add_argument(
        "--workers", type=int, help="API processes on the one port; default: GATEWAY_WORKERS or 1"
    )
    # what a worker's parent adds: the descriptor of the link between them
    parser.add_argument("--link", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.process == "media" and arguments.workers is not None:
        parser.error("only the API has workers")
    try:
        return asyncio.run(_serve(arguments))
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


async def _serve(arguments: argparse.Namespace) -> int:
    # a parent imports no API: it would double its memory
    if arguments.process == "media":
        from gateway_apiserver.processes import serve_media

        await serve_media(MediaSettings())  # pyright: ignore[reportCallIssue]
        return 0
    given: dict[str, Any] = {} if arguments.workers is None else {"workers": arguments.workers}
    settings = ApiSettings(**given)
    if arguments.link is None and settings.workers > 1:
        from gateway_apiserver.workers.parent import run_parent

        # each counts the others
        os.environ["GATEWAY_WORKERS"] = str(settings.workers)
        return await run_parent(settings, (sys.executable, "-m", "gateway_apiserver", "api"))
    from gateway_apiserver.processes import serve_api

    await serve_api(
        settings, None if arguments.link is None else socket.socket(fileno=arguments.link)
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
