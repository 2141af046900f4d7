"""`make bench`: every figure measured in one run, beside its bar; exit 1 where one falls short."""

import argparse
import asyncio
import sys

from tests.bench.creates import measure_creates
from tests.bench.inflight import measure_inflight
from tests.bench.polls import measure_polls
from tests.bench.report import Report
from tests.bench.stage import make_bench_key, root
from tests.servers.world import World

STAGES = ("creates", "polls", "inflight")


def main() -> int:
    """Runs the stages asked for, all by default."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stages", nargs="*", choices=[*STAGES, []], default=list(STAGES))
    wanted = parser.parse_args().stages or STAGES
    report = Report()
    with World() as world:
        key = asyncio.run(make_bench_key(world))
        if "polls" in wanted:
            asyncio.run(measure_polls(world, key, report))
        if "inflight" in wanted:
            asyncio.run(measure_inflight(world, key, report))
        if "creates" in wanted:
            # last, and without the operator: nobody is to work on what it leaves behind
            world.run.kill("operator")
            asyncio.run(measure_creates(world, key, report))
    return 0 if report.finish(root() / "bench-results.json") else 1


if __name__ == "__main__":
    sys.exit(main())
