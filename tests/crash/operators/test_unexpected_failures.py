"""An exception that nothing expects ends neither process: watches are begun again (I1, I9)."""

import asyncio
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.servers.replica import Replica
from tests.servers.world import World, wait_for

FAULT = """
import os
import aiohttp

connect = aiohttp.TCPConnector.connect

async def fail(self, request, *given, **options):
    if "watch" in request.url.query and os.path.exists({trigger!r}):
        raise RuntimeError("File descriptor 25 is used by transport")
    return await connect(self, request, *given, **options)

aiohttp.TCPConnector.connect = fail
"""


def read_failures(replica):
    """Unexpected failures by loop; none while the process does not serve yet."""
    try:
        with urllib.request.urlopen(f"{replica.health_url}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    except OSError:
        return {}
    return {
        sample.labels["loop"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "gateway_unexpected_failures_total"
    }


@pytest.fixture(scope="module")
def world(control_plane):
    """A gateway that no other file has used, and whose operator has been ended."""
    with World(control_plane) as running:
        running.run.kill("operator")
        yield running


@pytest.fixture
def trigger(tmp_path):
    """While this file is there, every watch raises in processes that have `fault_path`."""
    return tmp_path / "watches-fail"


@pytest.fixture
def fault_path(tmp_path, trigger):
    (tmp_path / "sitecustomize.py").write_text(FAULT.format(trigger=str(trigger)))
    return str(tmp_path)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("name", "loop"), [("operator", "feed"), ("api", "watch_of_gatewaytasks")])
async def test_watches_that_raise_are_begun_again(world, trigger, fault_path, name, loop):
    trigger.touch()
    replica = Replica(world, name, PYTHONPATH=fault_path)
    replica.start()
    try:
        await wait_for(lambda: read_failures(replica).get(loop, 0) >= 2, seconds=90)
    except AssertionError as error:
        # the log goes with the world
        error.add_note(replica.log.read_text(errors="replace")[-3000:])
        raise
    trigger.unlink()
    await wait_for(replica.is_ready, seconds=60)
    log = replica.log.read_text()
    assert "File descriptor 25 is used by transport" in log
    assert "Traceback" in log
    async with world.client() as client:
        base = replica.base_url if name == "api" else None
        made = (await client.create(base=base, duration_seconds=3)).body["id"]
        if name == "operator":
            await client.wait_terminal([made])
        else:
            polled = await client.request("GET", f"{client.tasks_path}/{made}", base=base)
            assert polled.status == 200
    assert replica.is_alive()
    replica.terminate()
    assert await asyncio.to_thread(replica.wait_ended) == 0
