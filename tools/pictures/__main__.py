"""`make pictures`: makes all pictures, or those named by the arguments."""

import asyncio
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp
from tools.debian import PackageMissingError
from tools.pictures.console import draw_console
from tools.pictures.dashboard import draw_dashboard
from tools.pictures.demo import draw_demo
from tools.pictures.recording import RecordingError
from tools.programs import ProgramMissingError

from gateway_cli.session import CommandError

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "pictures"


def make_demo() -> dict[str, bytes]:
    """The terminal of `make demo`."""
    return {"demo.svg": draw_demo().encode()}


def make_console() -> dict[str, bytes]:
    """Pages of the console."""
    return asyncio.run(draw_console())


def make_dashboard() -> dict[str, bytes]:
    """The Grafana dashboard with the values of a load run."""
    return {"dashboard.svg": asyncio.run(draw_dashboard()).encode()}


PICTURES: dict[str, Callable[[], dict[str, bytes]]] = {
    "demo": make_demo,
    "console": make_console,
    "dashboard": make_dashboard,
}
_PROBLEMS = (
    PackageMissingError,
    CommandError,
    ExceptionGroup,
    ProgramMissingError,
    RecordingError,
    aiohttp.ClientError,
)


def main() -> int:
    """0 if all were made; files of those that failed stay as they were."""
    names = sys.argv[1:] or list(PICTURES)
    if unknown := set(names) - set(PICTURES):
        print(f"✗ no picture {', '.join(sorted(unknown))}: {', '.join(PICTURES)}", file=sys.stderr)
        return 2
    # ended from outside, it ends what it has started, as after Ctrl-C
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in names:
        begin = time.monotonic()
        try:
            files = PICTURES[name]()
        except _PROBLEMS as error:
            print(f"✗ {name}: {error}", file=sys.stderr)
            return 1
        for file, data in files.items():
            (FOLDER / file).write_bytes(data)
            print(f"✓ {FOLDER.relative_to(ROOT) / file} ({len(data) / 1000:.0f} kB)")
        print(f"  {name} took {time.monotonic() - begin:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
