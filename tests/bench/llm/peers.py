"""The stage llm with other gateways in the same run: LiteLLM and Portkey, from their registries.

They are installed once, below the user's cache. Each has one process, as ours, and what its own
documentation advises for production. `BENCH_LITELLM` and `BENCH_PORTKEY` name other versions.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.bench.harness import run
from tests.bench.llm.stage import FLOOR, Contestant, compare
from tests.bench.report import Report
from tests.servers.world import World

LITELLM = os.environ.get("BENCH_LITELLM", "1.106.2")
"""The newest release whose dependencies could all be installed."""
PORTKEY = os.environ.get("BENCH_PORTKEY", "1.15.2")
NODE_SERVER = "1.13.8"
"""Of @hono/node-server: Portkey's streams fail on later ones, which its package allows."""
MASTER_KEY = "sk-bench"
COLUMNS = (
    "calls",
    "streams",
    "calls, latency p50",
    "calls, latency p99",
    "streams, first token p50",
    "streams, first token p99",
)


async def measure_llm_peers(world: World, key: str, report: Report) -> None:
    """All in one run; prints the table of docs/benchmarks.md."""
    litellm, portkey = install_litellm(), install_portkey()

    def start(stack: ExitStack, folder: Path, upstream: int) -> dict[str, Contestant]:
        return {
            f"LiteLLM {LITELLM}": start_litellm(stack, litellm, folder, upstream),
            f"Portkey {PORTKEY}": start_portkey(stack, portkey, folder, upstream),
        }

    found = await compare(world, key, report, start)
    print(f"\n{describe_run()}\n\n{render(found)}\n", flush=True)


def install_litellm() -> Path:
    """The folder of a virtual environment with LiteLLM's proxy."""

    def install(folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, f"litellm[proxy]=={LITELLM}"], check=True)

    return _install(f"litellm-{LITELLM}", install)


def install_portkey() -> Path:
    """The folder of an npm project with Portkey's gateway. RuntimeError without npm."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise RuntimeError("no node and npm in PATH to install Portkey with")

    def install(folder: Path) -> None:
        project = {
            "private": True,
            "dependencies": {"@portkey-ai/gateway": PORTKEY},
            "overrides": {"@hono/node-server": NODE_SERVER},
        }
        folder.mkdir()
        (folder / "package.json").write_text(json.dumps(project))
        command = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
        subprocess.run(command, cwd=folder, check=True)

    return _install(f"portkey-{PORTKEY}-{NODE_SERVER}", install)


def start_litellm(stack: ExitStack, folder: Path, logs: Path, upstream: int) -> Contestant:
    """LiteLLM's proxy with a master key and no database: it keeps no money and no other keys."""
    config = {
        "model_list": [
            {
                "model_name": "bench",
                "litellm_params": {
                    "model": "openai/bench",
                    "api_base": f"http://127.0.0.1:{upstream}/v1",
                    "api_key": "none",
                },
            }
        ],
        "general_settings": {"master_key": MASTER_KEY},
        "litellm_settings": {"request_timeout": 600, "set_verbose": False, "json_logs": True},
    }
    # JSON is YAML
    path = logs / "litellm.yaml"
    path.write_text(json.dumps(config))
    contestant = Contestant(upstream + 10, MASTER_KEY)
    options = ("--host", "127.0.0.1", "--port", str(contestant.port), "--num_workers", "1")
    command = (str(folder / "bin" / "litellm"), "--config", str(path), *options)
    env = {
        "LITELLM_LOG": "ERROR",
        "LITELLM_MODE": "PRODUCTION",
        # else it fetches prices from the Internet
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    stack.enter_context(run(*command, log=logs / "litellm.log", **env))
    return contestant


def start_portkey(stack: ExitStack, folder: Path, logs: Path, upstream: int) -> Contestant:
    """Portkey's gateway, which checks no key: its callers send the provider's."""
    program = folder / "node_modules" / "@portkey-ai" / "gateway" / "build" / "start-server.js"
    headers = (
        ("x-portkey-provider", "openai"),
        ("x-portkey-custom-host", f"http://127.0.0.1:{upstream}/v1"),
    )
    contestant = Contestant(upstream + 11, headers=headers)
    command = ("node", str(program), f"--port={contestant.port}", "--headless")
    stack.enter_context(run(*command, log=logs / "portkey.log", NODE_ENV="production"))
    return contestant


def describe_run() -> str:
    """When and where the table was measured."""
    node = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True)
    model = next(
        (line.partition(":")[2].strip() for line in _read_cpuinfo() if "model name" in line),
        "unknown processor",
    )
    now = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    load = os.getloadavg()[2]
    return (
        f"{now}, {os.cpu_count()} cores ({model}), Python {sys.version.split()[0]}, "
        f"Node {node.stdout.strip()}, load average of the last 15 minutes {load:.1f}"
    )


def render(found: dict[str, dict[str, float]]) -> str:
    """The table as Markdown: ratios to the floor, and milliseconds over its at half load."""
    lines = [f"| | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for name, values in found.items():
        if name == FLOOR:
            continue
        cells = [_render_cell(values, column) for column in COLUMNS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _render_cell(values: dict[str, float], column: str) -> str:
    is_ratio = ", " not in column
    return f"{values[column]:.2g}" if is_ratio else f"{values[column]:+.1f} ms"


def _read_cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def _install(name: str, install: Callable[[Path], None]) -> Path:
    """The folder `name` of the cache; `install` makes it once."""
    home = os.environ.get("XDG_CACHE_HOME")
    cache = (Path(home) if home else Path.home() / ".cache") / "model-gateway" / "peers"
    folder, done = cache / name, cache / f"{name}.installed"
    if not done.exists():
        print(f"Installing {name} from its registry: once, then it is cached", flush=True)
        cache.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        install(folder)
        done.touch()
    return folder
