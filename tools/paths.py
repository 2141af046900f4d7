"""`make paths`: the modules that one request passes, counted in the processes of a local run.

`tools/hook` counts calls of the product's functions in a window around each request, without the
object types of `core/api`. The medians of several windows leave out what happens beside it; in the
operator, which works on a task in many asyncio tasks, those of windows without a request are taken
off. The table goes to ARCHITECTURE.md.
"""

import asyncio
import os
import re
import signal
import sys
import tempfile
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
from pydantic import TypeAdapter
from tools.pictures.gateway import run_gateway
from tools.pictures.studio import receive_callbacks
from tools.reference.tables import build_table

from gateway_cli.local.config import MODEL, SERVICE
from gateway_cli.local.run import LocalRun
from gateway_cli.session import CommandError

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "ARCHITECTURE.md"
WINDOWS = 7
MAX_SECONDS = 60.0
CLOSING_SECONDS = 3.0
"""For the operator to record and archive a task after its callback."""
_TASKS = f"/api/v1/{SERVICE}/reference_to_video"
_TABLE = re.compile(r"(?<=<!-- make paths -->\n)(?:\|.*\n)*")

Calls = dict[str, int]
"""Calls by function, `module:name`."""


@dataclass(frozen=True, slots=True)
class PathThroughProcess:
    """A path that requests take, with the calls of each function for one request."""

    title: str
    process: str
    calls: Calls

    @property
    def modules(self) -> dict[str, int]:
        """Return the calls of each module."""
        modules: dict[str, int] = {}
        for function, count in self.calls.items():
            module = function.partition(":")[0]
            modules[module] = modules.get(module, 0) + count
        return modules


class Measurement:
    """Requests to a run whose API process and operator have the hook."""

    def __init__(self, run: LocalRun, folder: Path, client: aiohttp.ClientSession) -> None:
        self._run, self._folder, self._client = run, folder, client

    async def measure_create(self) -> PathThroughProcess:
        """Measure a create from the socket to its 202."""
        windows = [await self._count("api", self._create_task) for _ in range(WINDOWS)]
        return PathThroughProcess("POST reference_to_video → etcd → 202", "API", summarize(windows))

    async def measure_run(self, hook: str, delivered: asyncio.Event) -> PathThroughProcess:
        """Measure a task from its watch event to its archive."""

        async def run_task() -> None:
            delivered.clear()
            await self._create_task(callback_url=hook)
            await delivered.wait()
            await asyncio.sleep(CLOSING_SECONDS)

        loop, busy, idle = asyncio.get_running_loop(), list[Calls](), list[Calls]()
        for _ in range(WINDOWS):
            begin = loop.time()
            busy.append(await self._count("operator", run_task))
            seconds = loop.time() - begin
            idle.append(await self._count("operator", lambda: asyncio.sleep(seconds)))  # noqa: B023
        title = "watch event → provider → Completed → callback → archive"
        return PathThroughProcess(title, "operator", summarize(busy, idle))

    async def measure_chat(self) -> PathThroughProcess:
        """Measure a streamed chat of one word from the socket to its last byte."""
        messages = [{"role": "user", "content": "[[words=1]]"}]
        body = {"model": "sim-chat", "stream": True, "messages": messages}

        async def chat() -> None:
            await self._send("/v1/chat/completions", 200, body)

        windows = [await self._count("api", chat) for _ in range(WINDOWS)]
        return PathThroughProcess("POST chat/completions, streamed", "API", summarize(windows))

    async def warm_up(self) -> None:
        """Open the connections, and import what is imported late."""
        await self.measure_create()
        await self.measure_chat()

    async def _create_task(self, **more: Any) -> None:
        references = ["https://example.com/reference.png"]
        body = {
            "model": MODEL,
            "prompt": "a paper boat",
            "reference_image_urls": references,
            **more,
        }
        await self._send(_TASKS, 202, body, {"Idempotency-Key": str(uuid.uuid4())})

    async def _send(
        self,
        path: str,
        status: int,
        body: Mapping[str, Any],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        async with self._client.post(path, json=body, headers=headers) as answer:
            text = await answer.text()
            if answer.status != status:
                raise CommandError(f"POST {path} answers {answer.status}: {text}")

    async def _count(self, process: str, work: Callable[[], Awaitable[None]]) -> Calls:
        pid = self._run.supervisor.pid_of(process)
        async with asyncio.timeout(MAX_SECONDS):
            await self._signal(pid, signal.SIGRTMIN, "begun")
            await work()
            text = await self._signal(pid, signal.SIGRTMIN + 1, "ended")
        return TypeAdapter(Calls).validate_json(text)

    async def _signal(self, pid: int, number: int, name: str) -> str:
        """Send a signal and return what the process writes."""
        path = self._folder / f"{pid}.{name}"
        os.kill(pid, number)
        while not path.exists():  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.01)
        text = path.read_text()
        path.unlink()
        return text


def summarize(windows: Sequence[Calls], idle: Sequence[Calls] = ()) -> Calls:
    """Return the median calls of each function, less those of windows without a request."""
    functions = {function for calls in windows for function in calls}
    counts = {
        function: round(
            median(calls.get(function, 0) for calls in windows)
            - (median(calls.get(function, 0) for calls in idle) if idle else 0)
        )
        for function in sorted(functions)
    }
    return {function: count for function, count in counts.items() if count > 0}


def show(paths: Sequence[PathThroughProcess]) -> str:
    """Return the table of the paths."""
    rows = [
        (path.title, path.process, str(len(path.modules)), str(sum(path.calls.values())))
        for path in paths
    ]
    return build_table(("Path", "Process", "Modules", "Calls of functions"), rows)


async def measure() -> list[PathThroughProcess]:
    """Measure the three paths in a local run. CommandError."""
    delivered = asyncio.Event()
    with tempfile.TemporaryDirectory(prefix="gateway-paths-") as name:
        places = [str(ROOT / "tools" / "hook"), os.environ.get("PYTHONPATH", "")]
        env = {
            "GATEWAY_PATHS_FOLDER": name,
            "PYTHONPATH": os.pathsep.join(filter(None, places)),
        }
        extra_env = {
            "api": {**env, "GATEWAY_PATHS_REQUESTS": "1"},
            "operator": env,
            "simulator": {"GATEWAY_SIMULATOR_SECONDS": "0.5"},
        }
        async with run_gateway(extra_env) as run, receive_callbacks(delivered=delivered) as hook:
            headers = {"Authorization": f"Bearer {run.credentials.keys['demo'].plaintext}"}
            timeout = aiohttp.ClientTimeout(total=MAX_SECONDS)
            async with aiohttp.ClientSession(
                run.config.base_url, headers=headers, timeout=timeout
            ) as client:
                measurement = Measurement(run, Path(name), client)
                await measurement.warm_up()
                return [
                    await measurement.measure_create(),
                    await measurement.measure_run(hook, delivered),
                    await measurement.measure_chat(),
                ]


def main() -> int:
    """Print the modules of each path with their calls, and write the table."""
    try:
        paths = asyncio.run(measure())
    except (CommandError, TimeoutError, ExceptionGroup, aiohttp.ClientError) as error:
        print(f"✗ {error}", file=sys.stderr)
        return 1
    for path in paths:
        print(f"\n{path.title}")
        for module, count in path.modules.items():
            print(f"  {count:5} {module}")
    table = show(paths)
    print(f"\n{table}")
    PAGE.write_text(_TABLE.sub(table + "\n", PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
