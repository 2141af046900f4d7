"""`make bench`: every figure measured in one run, beside its bar; exit 1 where one falls short.

A stage is a coroutine `measure(world, key, report)`: put it in a module of its own and in STAGES.
Each begins with API and operator processes that have served nothing. One that fails is reported
with its error, the others still run, and the run ends with 1; the JSON is written in any case.
"""

import argparse
import asyncio
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable, Sequence

from tests.bench.admission import measure_admission
from tests.bench.batches import measure_batches
from tests.bench.callbacks import measure_callbacks
from tests.bench.console import measure_console
from tests.bench.creates import measure_creates
from tests.bench.files import measure_files
from tests.bench.harness import make_bench_key
from tests.bench.inflight import measure_inflight
from tests.bench.llm.memory import measure_llm_memory
from tests.bench.llm.peers import measure_llm_peers
from tests.bench.llm.stage import measure_llm
from tests.bench.mcp import measure_mcp
from tests.bench.polls import measure_polls
from tests.bench.reads import measure_reads
from tests.bench.report import ROOT, Report
from tests.bench.retention import measure_retention
from tests.bench.soak import measure_soak
from tests.bench.taskcost import measure_task_cost
from tests.bench.tenants import measure_tenants
from tests.bench.uploads import measure_uploads
from tests.servers.forking import execute_servers
from tests.servers.world import World

Stage = Callable[[World, str, Report], Awaitable[None]]

STAGES: dict[str, Stage] = {
    "polls": measure_polls,
    "reads": measure_reads,
    "taskcost": measure_task_cost,
    "inflight": measure_inflight,
    "batches": measure_batches,
    "callbacks": measure_callbacks,
    "retention": measure_retention,
    "files": measure_files,
    "uploads": measure_uploads,
    "llm": measure_llm,
    "llm-memory": measure_llm_memory,
    "llm-peers": measure_llm_peers,
    "mcp": measure_mcp,
    "console": measure_console,
    "tenants": measure_tenants,
    "soak": measure_soak,
    # last, since they end the operator: nobody is to work on what they leave behind
    "admission": measure_admission,
    "creates": measure_creates,
}
"""In the order in which they run, all in one world."""
ON_REQUEST = {"llm-peers"}
"""Stages that run only when named: they install other programs."""


def main() -> int:
    """Run the stages asked for, all by default."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description="Measures and compares with the bars.",
        epilog=f"Stages: {', '.join(STAGES)}.",
    )
    parser.add_argument(
        "stages", nargs="*", type=_read_stages, help="all that install nothing where none is given"
    )
    given = [name for names in parser.parse_args().stages for name in names]
    report = Report(ROOT / "bench-results.json")
    # as Ctrl-C, so that no process of the run stays
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with World() as world:
            key = make_bench_key(world)
            for name, measure in STAGES.items():
                if name in (given or STAGES.keys() - ON_REQUEST):
                    run_stage(name, measure, world, key, report)
    except KeyboardInterrupt:
        report.fail("the run", "interrupted")
    except Exception as error:
        traceback.print_exc()
        report.fail("the run", repr(error))
    return 0 if report.finish() else 1


def run_stage(name: str, measure: Stage, world: World, key: str, report: Report) -> None:
    """Run a stage on fresh processes; an error in it is reported and goes no further."""
    try:
        for process in world.names:
            if process in ("api", "operator") or not world.is_alive(process):
                world.run.restart(process, {})
        asyncio.run(measure(world, key, report))
        asyncio.run(behave(world))
    except Exception as error:
        traceback.print_exc()
        report.fail(name, repr(error))


async def behave(world: World) -> None:
    """End what the stage told the simulated provider to do."""
    async with world.client() as client:
        await client.simulate()


def _read_stages(text: str) -> Sequence[str]:
    """Names of stages with commas between them."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in STAGES:
            raise argparse.ArgumentTypeError(f"there is no stage {name!r}: {', '.join(STAGES)}")
    return names


if __name__ == "__main__":
    # a forked process shares memory with its parent, and starts without its imports
    execute_servers()
    sys.exit(main())
