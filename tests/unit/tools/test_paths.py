"""Counting for `make paths`: the hook in a process of its own, and the medians."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tools.paths import ROOT, MeasuredPath, show, summarize

_PROGRAM = """
import asyncio, os, signal, types

def define(name, source):
    module = types.ModuleType(name)
    exec(source, module.__dict__)
    return module

web = define("gateway_web.x", '''
import asyncio
def data_received(respond):
    return asyncio.create_task(respond())
''')
core = define("gateway_core.x", '''
import asyncio
async def respond():
    for _ in range(3):
        await asyncio.sleep(0)
async def sweep():
    pass
''')
api = define("gateway_core.api.x", "async def validate(): pass")

async def main():
    os.kill(os.getpid(), signal.SIGRTMIN)
    await asyncio.create_task(core.sweep())
    async def work():
        await core.respond()
        await api.validate()
    await asyncio.create_task(asyncio.to_thread(lambda: None))
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    loop.call_soon(lambda: done.set_result(web.data_received(work)))
    await (await done)
    os.kill(os.getpid(), signal.SIGRTMIN + 1)

asyncio.run(main())
"""


@pytest.mark.parametrize("only_requests", [True, False])
def test_hook_counts_starts_of_functions_that_a_request_causes(
    tmp_path: Path, only_requests: bool
) -> None:
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "tools" / "hook"),
        "GATEWAY_PATHS_FOLDER": str(tmp_path),
        "GATEWAY_PATHS_REQUESTS": "1" if only_requests else "",
    }
    subprocess.run([sys.executable, "-c", _PROGRAM], env=env, check=True)

    (written,) = tmp_path.glob("*.ended")
    request = {"gateway_web.x:data_received": 1, "gateway_core.x:respond": 1}
    others = {} if only_requests else {"gateway_core.x:sweep": 1}
    assert json.loads(written.read_text()) == request | others


def test_calls_beside_the_request_are_left_out() -> None:
    windows = [{"a:f": 2, "b:sweep": 1, "c:timer": 9}, {"a:f": 2, "c:timer": 8}, {"a:f": 3}]
    idle = [{"c:timer": 8}, {"c:timer": 9}, {"c:timer": 8}]

    assert summarize(windows, idle) == {"a:f": 2}


def test_table_counts_each_module_once() -> None:
    path = MeasuredPath("GET x", "API", {"a:f": 2, "a:g": 1, "b:f": 4})

    assert path.modules == {"a": 3, "b": 4}
    assert show([path]).splitlines()[-1] == "| GET x | API | 2 | 7 |"
