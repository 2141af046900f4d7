"""Memory of an API process over many streams (I10), and with many slow ones open (I11).

`BENCH_LLM_STREAMS` and `BENCH_LLM_SLOW_SECONDS` make the stage shorter.
"""

import json
import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gateway_cli.local.certificates import write_cluster_keys
from tests.bench.harness import read_mb, run
from tests.bench.llm.stage import (
    CHUNKS,
    Contestant,
    answers,
    build_program,
    find_wrk,
    run_wrk,
    serve_gateway,
)
from tests.bench.report import Report
from tests.servers.world import World, wait_for

STREAMS = int(os.environ.get("BENCH_LLM_STREAMS", "100000"))
WARM_UP = 5_000
"""Streams before memory is read first: pools and caches are full then."""
GROWTH_MIB = 4.0
LOAD_SECONDS = 10
SLOW = 2_000
SLOW_SECONDS = float(os.environ.get("BENCH_LLM_SLOW_SECONDS", "64"))
KIB_EACH = 40.0
KIB_EACH_TLS = 64.0
"""The rest is OpenSSL's, for the connection to the provider."""
LARGE_SITE = {
    "GATEWAY_MAX_CONNECTIONS": "2500",
    "GATEWAY_MAX_CONNECTIONS_PER_ADDRESS": "2500",
    "GATEWAY_ACCESS_LOG": "notable",
}
"""What an operator sets for thousands of streams that all come from one address."""
USUAL_DESCRIPTORS = 1024
"""The soft limit that most systems start a process with."""


async def measure_llm_memory(world: World, key: str, report: Report) -> None:
    """100,000 streams as fast as they go, then 2,000 slow ones at once, without and with TLS."""
    wrk = find_wrk()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        program = build_program(folder)
        keys = write_cluster_keys(folder)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (USUAL_DESCRIPTORS, hard))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        stack.callback(world.run.restart, "api", {})
        first = world.config.ports.api + 500
        pause = str(SLOW_SECONDS / CHUNKS)
        tls = str(keys.certificate), str(keys.key)
        upstreams = {
            "bench-fast": ("http", ()),
            "bench-slow": ("http", (pause,)),
            "bench-slow-tls": ("https", (pause, *tls)),
        }
        models: dict[str, Contestant] = {}
        for port, (name, (scheme, options)) in enumerate(upstreams.items(), first):
            stack.enter_context(run(str(program), "upstream", str(port), *options))
            url = f"{scheme}://127.0.0.1:{port}/v1"
            models[name] = serve_gateway(world, key, url, name)

        async def send(streams: int) -> int:
            fast, sent = models["bench-fast"], 0
            await wait_for(lambda: answers(wrk, folder, fast), what="the gateway")
            while sent < streams:
                result = run_wrk(wrk, folder, fast, True, LOAD_SECONDS)
                if result["errors"]:
                    raise RuntimeError(f"{result['errors']} errors")
                sent += int(result["requests"])
            return sent

        async def start_api() -> int:
            world.run.restart("api", {**LARGE_SITE, "SSL_CERT_FILE": str(keys.certificate)})
            await send(WARM_UP)
            return world.run.pid_of("api")

        api = await start_api()
        before = read_mb(api)
        report.add("llm-memory: API memory before all streams", before, "MiB")
        report.add("llm-memory: streams, 16 at once", await send(STREAMS), "streams")
        growth = read_mb(api) - before
        report.add("llm-memory: API memory grows by", growth, "MiB", at_most=GROWTH_MIB)
        measure_slow(program, models["bench-slow"], api, report, "slow", KIB_EACH)
        # what the others have left to the allocator is not to be used again
        api = await start_api()
        measure_slow(program, models["bench-slow-tls"], api, report, "slow with TLS", KIB_EACH_TLS)


def measure_slow(
    program: Path, slow: Contestant, api: int, report: Report, name: str, most: float
) -> None:
    """Memory while all streams are open, and whether each comes to its end."""
    before = read_mb(api)
    with open_streams(program, slow) as reports:
        opened = next(reports)
        each = (read_mb(api) - before) * 1024 / SLOW
        report.add(f"llm-memory: {name}, open at once", opened["open"], "streams")
        report.add(f"llm-memory: {name}, memory of each", each, "KiB", at_most=most)
        ended = next(reports)
    if ended["error"]:
        print(f"  first error: {ended['error']}")
    report.add(f"llm-memory: {name}, whole", ended["whole"], "streams", at_least=SLOW)


@contextmanager
def open_streams(program: Path, slow: Contestant) -> Iterator[Iterator[dict[str, Any]]]:
    """The reports of `llmbench streams`: when all are open, and when all have ended."""
    process = subprocess.Popen(
        [str(program), "streams", slow.url, str(SLOW)],
        env=slow.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdin as body:
            body.write(slow.write_body(True))
        yield map(json.loads, process.stdout)
    finally:
        process.kill()
        process.wait()
