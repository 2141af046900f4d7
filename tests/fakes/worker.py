"""A process in the place of an API worker: `python -m tests.fakes.worker FOLDER KIND … --link FD`.

The first one started is of the first kind, and so on; later ones are of the last. FOLDER counts.

`steady` ends with 0 after SIGTERM or SIGINT; `slow` half a second after it; `stubborn` never;
`silent` answers nothing once it was asked for metrics; `unready` is never ready; `unusable` ends
with 2 at once.
"""

import argparse
import asyncio
import os
import signal
import socket
import sys
from contextlib import suppress
from itertools import count
from pathlib import Path

from gateway_apiserver.workers.link import METRICS, NO, READY, YES, answer_parent


async def _serve(kind: str, link: socket.socket) -> None:

    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)

    async def tell_ready() -> bytes:
        return NO if kind == "unready" else YES

    async def read_metrics() -> bytes:
        if kind == "silent":
            # the link answers in order, so nothing is answered after it
            await asyncio.Event().wait()
        # imports of the library would take half of the start
        return b"# HELP pid The process.\n# TYPE pid gauge\npid %d\n" % os.getpid()

    async with answer_parent(link, {READY: tell_ready, METRICS: read_metrics}):
        await told.wait()
        if kind == "stubborn":
            await asyncio.Event().wait()
        if kind == "slow":
            await asyncio.sleep(0.5)


def main() -> int:
    """Serve until a signal; the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("kinds", nargs="+")
    parser.add_argument("--link", type=int, required=True)
    arguments = parser.parse_args()
    kind = arguments.kinds[min(_take_number(arguments.folder), len(arguments.kinds) - 1)]
    if kind == "unusable":
        return 2
    asyncio.run(_serve(kind, socket.socket(fileno=arguments.link)))
    return 0


def _take_number(folder: Path) -> int:
    for number in count():
        with suppress(FileExistsError):
            (folder / str(number)).touch(exist_ok=False)
            return number
    raise AssertionError


if __name__ == "__main__":
    sys.exit(main())
