"""`make pictures`: makes all pictures, or those named by the arguments."""

import asyncio
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp
from tools.pictures.console import draw_console
from tools.pictures.dashboard import draw_dashboard
from tools.pictures.demo import draw_demo
from tools.processes import CommandFailed
from tools.programs import ProgramMissingError

from gateway_cli.session import CommandError

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures"
PICTURES: dict[str, Callable[[], dict[str, bytes]]] = {
    "demo": lambda: {"demo.svg": draw_demo().encode()},
    "console": lambda: asyncio.run(draw_console()),
    "dashboard": lambda: {"dashboard.svg": asyncio.run(draw_dashboard()).encode()},
}
_PROBLEMS = (CommandError, CommandFailed, ExceptionGroup, ProgramMissingError, aiohttp.ClientError)


def main() -> int:
    """Return 0 if all were made; files of those that failed stay as they were."""
    names = sys.argv[1:] or list(PICTURES)
    if unknown := set(names) - set(PICTURES):
        print(f"✗ no picture {', '.join(sorted(unknown))}: {', '.join(PICTURES)}", file=sys.stderr)
        return 2
    # ended from outside, it ends what it has started, as after Ctrl-C
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for name in names:
        begin = time.monotonic()
        try:
            files = PICTURES[name]()
        except _PROBLEMS as error:
            print(f"✗ {name}: {error}", file=sys.stderr)
            return 1
        for file, data in files.items():
            (FOLDER / file).write_bytes(data)
            print(f"✓ docs/pictures/{file} ({len(data) / 1000:.0f} kB)")
        print(f"  {name} took {time.monotonic() - begin:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
