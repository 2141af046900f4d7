"""`python -m gateway_apiserver api|media`: the API process or the media host.

Ends with 2 for settings, secrets or a cluster that cannot be used, saying which.
"""

import argparse
import asyncio
import sys

from pydantic import ValidationError

from gateway_core.kube.connection import NoCluster
from gateway_core.kube.secrets import SecretsUnusable
from gateway_core.settings import list_problems


def main() -> int:
    """Serves until a signal; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m gateway_apiserver")
    parser.add_argument("process", choices=("api", "media"))
    process = parser.parse_args().process
    try:
        # each process imports its own part: the media host's pod is small
        if process == "api":
            from gateway_apiserver.processes import serve_api
            from gateway_apiserver.settings import ApiSettings

            asyncio.run(serve_api(ApiSettings()))  # pyright: ignore[reportCallIssue]
        else:
            from gateway_apiserver.media_process import serve_media
            from gateway_apiserver.settings import MediaSettings

            asyncio.run(serve_media(MediaSettings()))  # pyright: ignore[reportCallIssue]
    except ValidationError as error:
        print(*list_problems(error), sep="\n", file=sys.stderr)
        return 2
    except (NoCluster, SecretsUnusable) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
