"""LLM calls through pass-throughs to one fast upstream, as ratios to the floor.

The floor is a raw ASGI pass-through with aiohttp (`floor`). The load is wrk's, from Debian's
package; a load of a constant rate and the upstream are Go programs in `upstream`, built here.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson

from tests.bench.report import Report
from tests.servers.tenants import describe
from tests.servers.world import World, wait_for

FOLDER = Path(__file__).resolve().parent
ROUNDS = int(os.environ.get("BENCH_LLM_ROUNDS", "5"))
SECONDS = int(os.environ.get("BENCH_LLM_SECONDS", "3"))
CONNECTIONS = 16
PROMPT = ("A lighthouse at dawn, seen from the sea. " * 22)[:900]
FLOOR = "floor"


@dataclass(frozen=True, slots=True)
class Contestant:
    """A server of chat completions: its port, and the key and model of a call to it."""

    port: int
    key: str = "none"
    model: str = "bench"

    @property
    def url(self) -> str:
        """Where chat completions are."""
        return f"http://127.0.0.1:{self.port}/v1/chat/completions"

    def write_body(self, streams: bool) -> bytes:
        """The body of a call."""
        messages = [{"role": "user", "content": PROMPT}]
        body = {"model": self.model, "messages": messages}
        return orjson.dumps(body | {"stream": True} if streams else body)


async def measure_llm(world: World, key: str, report: Report) -> None:
    """Calls and streams a second in turns, then latency at half the floor's rate."""
    wrk = shutil.which("wrk")
    if wrk is None:
        raise RuntimeError("no wrk in PATH: install Debian's package wrk")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        program = build_program(folder)
        first = world.config.ports.api + 500
        upstream = Contestant(first)
        stack.enter_context(run(str(program), "upstream", str(first)))
        contestants = {FLOOR: Contestant(first + 1), "own client": Contestant(first + 2)}
        for module, contestant in zip(("floor", "own_client"), contestants.values(), strict=True):
            name = f"tests.bench.llm.{module}"
            ports = (str(contestant.port), str(first))
            stack.enter_context(run(sys.executable, "-m", name, *ports))
        # the whole gateway with admission, money and accounting, in one process
        contestants["gateway"] = serve_gateway(world, key, first)
        everyone = {"upstream alone": upstream, **contestants}
        for name, contestant in everyone.items():
            await wait_for(lambda at=contestant: _answers(wrk, folder, at), what=name)
        for work in ("calls", "streams"):
            rates = measure_rates(wrk, folder, everyone, work == "streams")
            for name, values in rates.items():
                report.add(f"llm: {work}, {name}", statistics.median(values), "1/s")
                if name in contestants and name != FLOOR:
                    pairs = zip(values, rates[FLOOR], strict=True)
                    ratio = statistics.median(own / floor for own, floor in pairs)
                    report.add(f"llm: {work}, {name} over the floor", ratio, "ratio")
            half = statistics.median(rates[FLOOR]) / 2
            report_latency(program, contestants, work, half, report)


def serve_gateway(world: World, key: str, upstream_port: int) -> Contestant:
    """The API of the world, with a model whose provider is the upstream."""
    base_url = f"http://127.0.0.1:{upstream_port}/v1"
    spec = {"type": "openai", "maxConcurrentRequests": 512, "openai": {"baseUrl": base_url}}
    route = {"name": "main", "providerName": "bench-llm", "upstreamModel": "bench"}
    price = {"inputPerMillionMicros": 500_000, "outputPerMillionMicros": 1_500_000}
    world.apply(
        describe("Provider", "bench-llm", spec),
        describe(
            "Model",
            "bench-chat",
            {
                "modelId": "bench-chat",
                "service": "bench",
                "action": "chat",
                "routes": [route],
                "prices": [price],
            },
        ),
    )
    return Contestant(world.config.ports.api, key, "bench-chat")


def measure_rates(
    wrk: str, folder: Path, everyone: dict[str, Contestant], streams: bool
) -> dict[str, list[float]]:
    """Requests a second of each, in turns."""
    rates: dict[str, list[float]] = {name: [] for name in everyone}
    for _ in range(ROUNDS):
        for name, contestant in everyone.items():
            result = run_wrk(wrk, folder, contestant, streams, SECONDS)
            if result["errors"]:
                raise RuntimeError(f"{name}: {result['errors']} errors")
            rates[name].append(result["requests"] / result["seconds"])
    return rates


def report_latency(
    program: Path, contestants: dict[str, Contestant], work: str, rate: float, report: Report
) -> None:
    """Percentiles at one constant rate for all, and what they are over the floor's."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in contestants}
    for _ in range(ROUNDS):
        for name, contestant in contestants.items():
            found[name].append(run_load(program, contestant, work == "streams", rate))
    kinds = {"last": "latency"} if work == "calls" else {"first": "first token", "last": "latency"}
    for field, kind in kinds.items():
        for share in ("p50", "p99"):
            values = {
                name: statistics.median(one[f"{field}_{share}"] for one in rounds)
                for name, rounds in found.items()
            }
            for name, value in values.items():
                title = f"llm: {work} at half load, {kind} {share}, {name}"
                over = value if name == FLOOR else value - values[FLOOR]
                report.add(title + ("" if name == FLOOR else " over the floor"), over, "ms")


def build_program(folder: Path) -> Path:
    """The Go program of the stage. RuntimeError without a Go toolchain."""
    go = shutil.which("go")
    if go is None:
        raise RuntimeError("no go in PATH to build the upstream with")
    program = folder / "llmbench"
    subprocess.run(
        [go, "build", "-o", str(program), "."],
        cwd=FOLDER / "upstream",
        env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"},
        check=True,
    )
    return program


@contextmanager
def run(*command: str) -> Iterator[None]:
    """A server, ended with the context."""
    process = subprocess.Popen(command, cwd=FOLDER.parents[2])
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def run_wrk(
    wrk: str, folder: Path, contestant: Contestant, streams: bool, seconds: int
) -> dict[str, float]:
    """What `chat.lua` prints."""
    body = folder / "body.json"
    body.write_bytes(contestant.write_body(streams))
    done = subprocess.run(
        [
            *(wrk, "--threads", "1", "--connections", str(CONNECTIONS)),
            *("--duration", f"{seconds}s", "--script", str(FOLDER / "chat.lua"), contestant.url),
        ],
        env={**os.environ, "LLM_BODY": str(body), "LLM_KEY": contestant.key},
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def run_load(program: Path, contestant: Contestant, streams: bool, rate: float) -> dict[str, float]:
    """Percentiles in milliseconds at a constant rate."""
    done = subprocess.run(
        [str(program), "load", contestant.url, f"{rate:.3f}", str(SECONDS)],
        input=contestant.write_body(streams),
        env={**os.environ, "LLM_KEY": contestant.key},
        stdout=subprocess.PIPE,
        check=True,
    )
    return dict(json.loads(done.stdout))


async def _answers(wrk: str, folder: Path, contestant: Contestant) -> bool:
    try:
        result = run_wrk(wrk, folder, contestant, False, 1)
    except subprocess.CalledProcessError:
        return False
    return not result["errors"]
