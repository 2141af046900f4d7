"""LLM calls through pass-throughs to one fast upstream, as ratios to the floor.

The floor is a raw ASGI pass-through with aiohttp (see `bare_servers`). The load is wrk's, from
Debian's package; a load of a constant rate and the upstream are Go programs in `upstream`.
"""

import json
import os
import shutil
import statistics
import subprocess
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson

from tests.bench.harness import run, serve_bare
from tests.bench.report import Report
from tests.servers.replica import Replica
from tests.servers.tenants import describe
from tests.servers.world import World, wait_for

FOLDER = Path(__file__).resolve().parent
ROUNDS = int(os.environ.get("BENCH_LLM_ROUNDS", "5"))
SECONDS = int(os.environ.get("BENCH_LLM_SECONDS", "3"))
CONNECTIONS = 16
CHUNKS = 64
"""Of a stream of the upstream."""
START_SECONDS = 60
TIMEOUT_SECONDS = 30
"""Of one request: slow gateways divide few streams a second among all connections."""
PROMPT = ("A lighthouse at dawn, seen from the sea. " * 22)[:900]
FLOOR = "floor"
TWO_PROCESSES = "gateway in two processes"
BARS = {
    ("calls", "gateway"): {"at_least": 1.0},
    ("streams", "gateway"): {"at_least": 1.2},
    ("calls", TWO_PROCESSES): {"at_least": 1.5},
}
ADDED_MILLISECONDS = {"p50": 1.0, "p99": 5.0}
"""Over the floor, of the gateway in one process: a call, and the first token of a stream."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """A server of chat completions: its port, and the key, model and headers of a call to it."""

    port: int
    key: str = "none"
    model: str = "bench"
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/chat/completions"

    @property
    def env(self) -> dict[str, str]:
        """The environment of a load: all headers, a line each."""
        headers = (("authorization", f"Bearer {self.key}"), *self.headers)
        return {**os.environ, "LLM_HEADERS": "\n".join(map(": ".join, headers))}

    def write_body(self, streams: bool) -> bytes:
        messages = [{"role": "user", "content": PROMPT}]
        body = {"model": self.model, "messages": messages}
        return orjson.dumps(body | {"stream": True} if streams else body)


StartPeers = Callable[[ExitStack, Path, int], dict[str, Contestant]]
"""Starts other gateways in front of the upstream at a port, with their files in a folder."""


def start_none(_stack: ExitStack, _folder: Path, _upstream_port: int) -> dict[str, Contestant]:
    return {}


async def measure_llm(world: World, key: str, report: Report) -> None:
    """Calls and streams a second in turns, then latency at half load."""
    await compare(world, key, report, start_none)


async def compare(
    world: World, key: str, report: Report, start_peers: StartPeers
) -> dict[str, dict[str, float]]:
    """All contestants in one run; of each the ratios to the floor, and milliseconds over it."""
    wrk = find_wrk()
    async with AsyncExitStack() as servers:
        stack = servers.enter_context(ExitStack())
        folder = Path(stack.enter_context(TemporaryDirectory()))
        program = build_program(folder)
        first = world.config.ports.api + 500
        upstream = Contestant(first)
        stack.enter_context(run(str(program), "upstream", str(first)))
        contestants = {FLOOR: Contestant(first + 1), "own client": Contestant(first + 2)}
        for name, contestant in contestants.items():
            bare = serve_bare(name, contestant.port, str(first))
            await servers.enter_async_context(bare)
        # the whole gateway with admission, money and accounting, in one process
        contestants["gateway"] = serve_gateway(world, key, f"http://127.0.0.1:{first}/v1")
        shared = {"GATEWAY_REUSE_PORT": "true", "GATEWAY_REPLICAS": "2"}
        pair = stack.enter_context(Replica(world, "api", **shared))
        port = str(pair.port)
        stack.enter_context(Replica(world, "api", GATEWAY_API_PORT=port, **shared))
        contestants[TWO_PROCESSES] = replace(contestants["gateway"], port=pair.port)
        contestants |= start_peers(stack, folder, first)
        everyone = {"upstream alone": upstream, **contestants}
        for name, contestant in everyone.items():
            ready = partial(answers, wrk, folder, contestant)
            await wait_for(ready, what=name, seconds=START_SECONDS)
        found: dict[str, dict[str, float]] = {name: {} for name in contestants}
        for work in ("calls", "streams"):
            rates = measure_rates(wrk, folder, everyone, work == "streams")
            for name, values in rates.items():
                report.add(f"llm: {work}, {name}", statistics.median(values), "1/s")
                if name in contestants:
                    pairs = zip(values, rates[FLOOR], strict=True)
                    found[name][work] = statistics.median(own / floor for own, floor in pairs)
                    if name != FLOOR:
                        ratio, bar = found[name][work], BARS.get((work, name), {})
                        report.add(f"llm: {work}, {name} over the floor", ratio, "ratio", **bar)
            most = statistics.median(rates[FLOOR])
            # beyond its own rate a contestant would show how long its queue is
            halves = {name: min(most, statistics.median(rates[name])) / 2 for name in contestants}
            latencies = report_latency(program, contestants, work, halves, report)
            for name, latency in latencies.items():
                found[name] |= latency
        # what else the machine did
        report.add("llm: load average of the last 15 minutes", os.getloadavg()[2], "")
    return found


def serve_gateway(world: World, key: str, base_url: str, model: str = "bench-chat") -> Contestant:
    """The API of the world, with a model whose provider is the upstream."""
    # of which one account may have half
    spec = {"type": "openai", "maxConcurrentRequests": 5000, "openai": {"baseUrl": base_url}}
    route = {"name": "main", "providerName": model, "upstreamModel": "bench"}
    price = {"inputPerMillionMicros": 500_000, "outputPerMillionMicros": 1_500_000}
    world.apply(
        describe("Provider", model, spec),
        describe(
            "Model",
            model,
            {
                "modelId": model,
                "service": model,
                "action": "chat",
                "routes": [route],
                "prices": [price],
            },
        ),
    )
    return Contestant(world.config.ports.api, key, model)


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
    program: Path,
    contestants: dict[str, Contestant],
    work: str,
    rates: dict[str, float],
    report: Report,
) -> dict[str, dict[str, float]]:
    """Percentiles at each one's constant rate, and what they are over the floor's at its own."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in contestants}
    for _ in range(ROUNDS):
        for name, contestant in contestants.items():
            found[name].append(run_load(program, contestant, work == "streams", rates[name]))
    kinds = {"last": "latency"} if work == "calls" else {"first": "first token", "last": "latency"}
    over: dict[str, dict[str, float]] = {name: {} for name in contestants}
    for field, kind in kinds.items():
        for share in ("p50", "p99"):
            values = {
                name: statistics.median(one[f"{field}_{share}"] for one in rounds)
                for name, rounds in found.items()
            }
            for name, value in values.items():
                title = f"llm: {work} at half load, {kind} {share}, {name}"
                added = over[name][f"{work}, {kind} {share}"] = value - values[FLOOR]
                if name == FLOOR:
                    report.add(title, value, "ms")
                else:
                    has_bar = name == "gateway" and (work, field) != ("streams", "last")
                    bar = {"at_most": ADDED_MILLISECONDS[share]} if has_bar else {}
                    report.add(title + " over the floor", added, "ms", **bar)
    return over


def find_wrk() -> str:
    """The load generator. RuntimeError where it is not installed."""
    wrk = shutil.which("wrk")
    if wrk is None:
        raise RuntimeError("no wrk in PATH: install Debian's package wrk")
    return wrk


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


def run_wrk(
    wrk: str, folder: Path, contestant: Contestant, streams: bool, seconds: int
) -> dict[str, float]:
    """What `chat.lua` prints. RuntimeError where wrk cannot connect."""
    body = folder / "body.json"
    body.write_bytes(contestant.write_body(streams))
    done = subprocess.run(
        [
            *(wrk, "--threads", "1", "--connections", str(CONNECTIONS)),
            *("--duration", f"{seconds}s", "--timeout", f"{TIMEOUT_SECONDS}s"),
            *("--script", str(FOLDER / "chat.lua"), contestant.url),
        ],
        env={**contestant.env, "LLM_BODY": str(body)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"wrk: {done.stderr.strip()}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def run_load(program: Path, contestant: Contestant, streams: bool, rate: float) -> dict[str, float]:
    """Percentiles in milliseconds at a constant rate."""
    done = subprocess.run(
        [str(program), "load", contestant.url, f"{rate:.3f}", str(SECONDS)],
        input=contestant.write_body(streams),
        env=contestant.env,
        stdout=subprocess.PIPE,
        check=True,
    )
    return dict(json.loads(done.stdout))


async def answers(wrk: str, folder: Path, contestant: Contestant) -> bool:
    """Whether a contestant answers calls without an error."""
    try:
        result = run_wrk(wrk, folder, contestant, False, 1)
    except RuntimeError:
        return False
    return not result["errors"]
