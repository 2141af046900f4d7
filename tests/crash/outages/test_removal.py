"""Everything is removed under a running operator, or without one, in hostile orders.

docs/install.md has the commands of the documented order.
There is no namespace controller here: a deleted namespace stays marked, and the test deletes its
objects as that controller does. CRDs are deleted by the API server itself.
"""

import json
from collections.abc import Iterator

import pytest

from gateway_cli.local.config import MODERATION_MODEL
from tests.crash.commands import run_gatewayctl
from tests.crash.storage import Uploading, create_file
from tests.servers.control_plane import ControlPlane
from tests.servers.world import World, wait_for

pytestmark = [pytest.mark.timeout(300)]

FINALIZED = ("gatewayfiles", "gatewayuploads", "gatewaybatches", "gatewaytasks")
HOSTILE = ("gatewayproviders", "gatewaymodels", "gatewayaccounts", "gatewayusages", *FINALIZED)
"""Order in which the objects that tasks need are deleted before the tasks."""
REST = ("gatewaykeys", "gatewayguardrails", "gatewayusers", "gatewayoauthclients", "gatewaygrants")
REST += ("gatewayprompts",)
BOUND_SECONDS = 60.0


async def fill(client, purpose="batch"):
    """Two jobs that run for minutes, a file, an upload, and a batch of the file; the job ids.

    A file of another purpose has no batch, and is removed without a pause.
    """
    await client.simulate({"behaviour": "seconds", "seconds": "300"})
    for number in range(2):
        await client.create_surely(f"running-{number}")
    line = {"custom_id": "r", "method": "POST", "url": "/v1/moderations"}
    line["body"] = {"model": MODERATION_MODEL, "input": "a text"}
    file = await create_file(client, json.dumps(line).encode(), purpose)
    await Uploading(client).begin()
    batch = {
        "input_file_id": file,
        "endpoint": "/v1/moderations",
        "completion_window": "24h",
    }
    if purpose == "batch":
        made = await client.request("POST", "/v1/batches", body=batch)
        assert made.status == 200, made.raw

    def list_jobs():
        found = json.loads(client.world.run.kubectl("get", "gatewaytasks", "-o", "json"))["items"]
        jobs = [(task.get("status") or {}).get("upstream", {}).get("jobId") for task in found]
        return jobs if len(jobs) == 2 and all(jobs) else None

    return await wait_for(list_jobs, what="two jobs")


async def list_cancelled(client):
    """The jobs that were cancelled at the provider."""
    cancels = (await client.read_simulator())["cancels"]
    return sorted({entry["job_id"] for entry in cancels if entry["cancelled"]})


def list_left(world):
    """Objects that a finalizer keeps."""
    listed = world.run.kubectl("get", ",".join(FINALIZED), "-o", "name", "--ignore-not-found")
    return listed.split()


def remove_secrets(world):
    world.run.kubectl("delete", "secret", "--all", "--wait=false")


@pytest.fixture(scope="module")
def doomed_control_plane() -> Iterator[ControlPlane]:
    """A control plane whose CRDs tests delete."""
    with ControlPlane() as running:
        yield running


async def test_terminating_namespace_stops_jobs_and_releases_all_finalizers(control_plane, tally):
    told = tally("F28", "namespace deleted, its objects in a hostile order")
    with World(control_plane) as world:
        async with world.client() as client:
            jobs = await fill(client)
            async with told.trial(client):
                world.run.kubectl("delete", "namespace", world.config.namespace, "--wait=false")
                for plural in HOSTILE:
                    world.run.kubectl("delete", plural, "--all", "--wait=false")
                remove_secrets(world)
                await wait_for(
                    lambda: not list_left(world),
                    seconds=BOUND_SECONDS,
                    what="the end of the objects",
                )
                assert await list_cancelled(client) == sorted(jobs)
    told.check()


async def test_deleted_crds_end_with_an_operator_and_stop_jobs(doomed_control_plane, tally):
    told = tally("F28", "CRDs deleted in a hostile order")
    with World(doomed_control_plane) as world:
        async with world.client() as client:
            jobs = await fill(client)
            async with told.trial(client):
                remove_secrets(world)
                for plural in (*HOSTILE, *REST):
                    world.run.kubectl("delete", "crd", f"{plural}.modelgateway.dev", "--wait=false")
                await wait_for(
                    lambda: not world.run.kubectl("get", "crd", "-o", "name").split(),
                    seconds=BOUND_SECONDS,
                    what="the end of the CRDs",
                )
                assert await list_cancelled(client) == sorted(jobs)
    told.check()


async def test_remove_does_the_part_of_an_absent_operator(control_plane, tally):
    told = tally("F28", "everything removed without an operator")
    with World(control_plane) as world:
        async with world.client() as client:
            jobs = await fill(client)
            async with told.trial(client):
                world.run.kill("operator")
                world.run.kubectl("delete", "namespace", world.config.namespace, "--wait=false")
                world.run.kubectl("delete", ",".join(FINALIZED), "--all", "--wait=false")
                assert len(list_left(world)) >= 5
                # the control plane is shared
                code, outcome = run_gatewayctl(
                    world, "install", "remove", "--yes", "--keep-crds", "--wait=1s"
                )
                assert (code, outcome["jobsStopped"], outcome["jobsLeft"]) == (0, 2, [])
                assert not list_left(world)
                assert await list_cancelled(client) == sorted(jobs)
    told.check()


async def test_remove_ends_with_nothing_left_while_the_operator_runs(doomed_control_plane, tally):
    told = tally("F28", "everything removed while the operator runs")
    with World(doomed_control_plane) as world:
        async with world.client() as client:
            jobs = await fill(client, purpose="user_data")
            async with told.trial(client):
                code, outcome = run_gatewayctl(world, "install", "remove", "--yes")
                assert (code, outcome["jobsLeft"], outcome["released"]) == (0, [], [])
                assert (outcome["crds"], outcome["uncountedMicros"]) == ("removed", {})
                assert outcome["deleted"]["gatewaytasks"] == 2
                assert await list_cancelled(client) == sorted(jobs)
                assert world.is_alive("operator")
    told.check()
