"""`make paths`: the modules that one request passes, counted in the processes of a local run.

`tools/hook` counts calls of the product's functions in a window around each request, without the
object types of `core/api`. The medians of several windows leave out what happens beside it; in the
operator, which works on a task in many asyncio tasks, those of windows without a request are taken
off. The table goes to ARCHITECTURE.md.
"""

import asyncio
import json
import os
import re
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from uuid import uuid4

import aiohttp
from tools.pictures.gateway import receive_callbacks, run_gateway
from tools.reference.tables import build_table

from gateway_cli.local.config import MODEL, SERVICE
from gateway_cli.rest.sample import ACTION, SAMPLE_INPUT
from gateway_cli.session import CommandError

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "ARCHITECTURE.md"
WINDOWS = 7
MAX_SECONDS = 60.0
ENDING_SECONDS = 0.3
CLOSING_SECONDS = 3.0
"""For the operator to record and archive a task after its callback."""
_TASKS = f"/api/v1/{SERVICE}/{ACTION}"
_TASK = {"model": MODEL, **SAMPLE_INPUT}
_CHAT = {
    "model": "sim-chat",
    "stream": True,
    "messages": [{"role": "user", "content": "[[words=1]]"}],
}
_TABLE = re.compile(r"(?<=<!-- make paths -->\n)(?:\|.*\n)*")

Calls = dict[str, int]
"""Calls by function, `module:name`."""


@dataclass(frozen=True, slots=True)
class MeasuredPath:
    """A path that requests take, with the calls of each function for one request."""

    title: str
    process: str
    calls: Calls

    @property
    def modules(self) -> Counter[str]:
        """Return the calls of each module."""
        modules = Counter[str]()
        for function, count in self.calls.items():
            modules[function.partition(":")[0]] += count
        return modules


def summarize(windows: Sequence[Calls], idle: Sequence[Calls] = ({},)) -> Calls:
    """Return the median calls of each function, less those of windows without a request."""
    counts = {
        function: round(
            median(calls.get(function, 0) for calls in windows)
            - median(calls.get(function, 0) for calls in idle)
        )
        for function in sorted(set().union(*windows))
    }
    return {function: count for function, count in counts.items() if count > 0}


def show(paths: Sequence[MeasuredPath]) -> str:
    """Return the table of the paths."""
    rows = ((p.title, p.process, f"{len(p.modules)}", f"{p.modules.total()}") for p in paths)
    return build_table(("Path", "Process", "Modules", "Calls of functions"), rows)


async def count_calls(pid: int, folder: Path, work: Callable[[], Awaitable[None]]) -> Calls:
    """Return the calls in a process with the hook while the work is done."""

    async def send(number: int, name: str) -> str:
        path = folder / f"{pid}.{name}"
        os.kill(pid, number)
        while not path.exists():  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.01)
        text = path.read_text()
        path.unlink()
        return text

    async with asyncio.timeout(MAX_SECONDS):
        await send(signal.SIGRTMIN, "begun")
        await work()
        # the process counts and logs a request after its answer
        await asyncio.sleep(ENDING_SECONDS)
        calls: Calls = json.loads(await send(signal.SIGRTMIN + 1, "ended"))
        return calls


async def measure(folder: Path) -> list[MeasuredPath]:
    """Measure the three paths in a local run. CommandError."""
    places = [str(ROOT / "tools" / "hook"), os.environ.get("PYTHONPATH", "")]
    env = {
        "GATEWAY_PATHS_FOLDER": str(folder),
        "PYTHONPATH": os.pathsep.join(filter(None, places)),
    }
    extra_env = {
        "api": {**env, "GATEWAY_PATHS_REQUESTS": "1"},
        "operator": env,
        "simulator": {"GATEWAY_SIMULATOR_SECONDS": "0.5"},
    }
    delivered = asyncio.Event()
    async with run_gateway(extra_env) as run, receive_callbacks(delivered=delivered) as hook:
        headers = {"Authorization": f"Bearer {run.credentials.keys['demo'].plaintext}"}
        async with aiohttp.ClientSession(run.config.base_url, headers=headers) as client:

            async def post(path: str, body: object, **headers: str) -> None:
                async with client.post(path, json=body, headers=headers) as answer:
                    text = await answer.text()
                    if not answer.ok:
                        raise CommandError(f"POST {path} answers {answer.status}: {text}")

            async def create(**more: str) -> None:
                await post(_TASKS, {**_TASK, **more}, **{"Idempotency-Key": f"{uuid4()}"})

            async def chat() -> None:
                await post("/v1/chat/completions", _CHAT)

            async def run_task() -> None:
                delivered.clear()
                await create(callback_url=hook)
                await delivered.wait()
                await asyncio.sleep(CLOSING_SECONDS)

            async def count(process: str, work: Callable[[], Awaitable[None]]) -> list[Calls]:
                pid = run.supervisor.pid_of(process)
                # what is opened or imported by the first request is left out
                await work()
                return [await count_calls(pid, folder, work) for _ in range(WINDOWS)]

            async def wait() -> None:
                await asyncio.sleep(CLOSING_SECONDS + 1)

            created, chatted = await count("api", create), await count("api", chat)
            busy, idle = await count("operator", run_task), await count("operator", wait)
    return [
        MeasuredPath("POST reference_to_video → etcd → 202", "API", summarize(created)),
        MeasuredPath(
            "watch event → provider → Completed → callback → archive",
            "operator",
            summarize(busy, idle),
        ),
        MeasuredPath("POST chat/completions, streamed", "API", summarize(chatted)),
    ]


def main() -> int:
    """Print the modules of each path with their calls, and write the table."""
    try:
        with tempfile.TemporaryDirectory(prefix="gateway-paths-") as name:
            paths = asyncio.run(measure(Path(name)))
    except (CommandError, TimeoutError, ExceptionGroup, aiohttp.ClientError) as error:
        print(f"✗ {error}", file=sys.stderr)
        return 1
    for path in paths:
        print(f"\n{path.title}")
        for module, count in sorted(path.modules.items()):
            print(f"  {count:5} {module}")
    table = show(paths)
    print(f"\n{table}")
    PAGE.write_text(_TABLE.sub(table + "\n", PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
