"""`make bench`: every figure measured in one run, beside its bar; exit 1 where one falls short.

A stage is a coroutine `measure(world, key, report)`: put it in a module of its own and in STAGES.
"""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence

from tests.bench.admission import measure_admission
from tests.bench.batches import measure_batches
from tests.bench.callbacks import measure_callbacks
from tests.bench.creates import measure_creates
from tests.bench.files import measure_files
from tests.bench.inflight import measure_inflight
from tests.bench.polls import measure_polls
from tests.bench.report import Report
from tests.bench.retention import measure_retention
from tests.bench.stage import make_bench_key, root
from tests.bench.store import measure_store
from tests.bench.tenants import measure_tenants
from tests.bench.uploads import measure_uploads
from tests.servers.world import World

Stage = Callable[[World, str, Report], Awaitable[None]]

STAGES: dict[str, Stage] = {
    "polls": measure_polls,
    "inflight": measure_inflight,
    "batches": measure_batches,
    "callbacks": measure_callbacks,
    "retention": measure_retention,
    "store": measure_store,
    "files": measure_files,
    "uploads": measure_uploads,
    "tenants": measure_tenants,
    # last, since they end the operator: nobody is to work on what they leave behind
    "admission": measure_admission,
    "creates": measure_creates,
}
"""In the order in which they run, all in one world."""


def main() -> int:
    """Runs the stages asked for, all by default."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description="Measures and compares with the bars.",
        epilog=f"Stages: {', '.join(STAGES)}.",
    )
    parser.add_argument("stages", nargs="*", type=_read_stages, help="all where none is given")
    given = [name for names in parser.parse_args().stages for name in names]
    report = Report()
    with World() as world:
        key = asyncio.run(make_bench_key(world))
        for name, measure in STAGES.items():
            if name in (given or STAGES):
                asyncio.run(measure(world, key, report))
    return 0 if report.finish(root() / "bench-results.json") else 1


def _read_stages(text: str) -> Sequence[str]:
    """Names of stages with commas between them."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in STAGES:
            raise argparse.ArgumentTypeError(f"there is no stage {name!r}: {', '.join(STAGES)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
