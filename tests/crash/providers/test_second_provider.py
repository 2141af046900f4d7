"""Two providers of different styles at once; the second has a look-up alone, and notifies (I1, I2).

Its declaration is the second example of docs/providers.md, led to a server of that style.
"""

import asyncio
import time

import pytest

from tests.crash.history import check_money
from tests.servers.guide import lead_to, read_example
from tests.servers.providers import NEVER, VIDEO, OperationsProvider
from tests.servers.tenants import describe_model, wait_status
from tests.servers.world import check_invariants, read_task, wait_for
from tests.shares import IS_WHOLE

pytestmark = [pytest.mark.timeout(400)]

HURRIED = {"minIntervalSeconds": 1, "maxIntervalSeconds": 2}
PATIENT = {"minIntervalSeconds": 60, "maxIntervalSeconds": 60, "notifiedIntervalSeconds": 600}


@pytest.fixture(scope="module")
def server():
    with OperationsProvider() as running:
        yield running


@pytest.fixture(autouse=True)
def behaving(server):
    server.behave()
    yield
    server.behave()


@pytest.fixture(scope="module")
def providers(world, server):
    """The example twice: one that is asked every second, one that is asked every minute."""
    hurried = read_example("workshop")
    led = lead_to(hurried, server.url, server.token, **HURRIED)
    led["GatewayProvider"]["spec"]["http"] |= {"requestTimeoutSeconds": 2}
    led["GatewayProvider"]["spec"]["http"]["lookup"]["visibleAfterSeconds"] = 3
    patient = lead_to(hurried, server.url, server.token, **PATIENT)
    patient["GatewayProvider"]["metadata"]["name"] = "patient"
    route = {"name": "main", "providerName": "patient", "upstreamModel": "film/wide-2"}
    model = describe_model(world, "patient", routes=[route])
    world.apply(*led.values(), patient["GatewayProvider"], model)
    wait = ("--for=condition=Ready", "--timeout=30s")
    world.run.kubectl("wait", *wait, "gatewayprovider/workshop", "gatewayprovider/patient")
    world.run.kubectl("wait", *wait, "gatewaymodel/workshop-wide", "gatewaymodel/patient")


@pytest.fixture
async def client(world, providers):
    """A client of the second provider's first model."""
    async with at_model(world, "workshop", "workshop-wide") as own:
        yield own


@pytest.fixture
async def patient(world, providers):
    """A client of the model that is asked after every minute."""
    async with at_model(world, "patient", "patient") as own:
        yield own


def at_model(world, service, model):
    own = world.client()
    own.service, own.model = service, model
    return own


async def check_jobs(client, server):
    """I2: exactly one job for each task, in the provider's own journal."""
    for task in client.history.accepted:
        made = server.made(read_task(client.world, task)["metadata"]["uid"])
        assert len(made) == 1, f"I2: {task} has {len(made)} upstream jobs"


async def run_one(client, server, key, *, seconds=90):
    """A task to its end; its body. The model is taken a moment after it is ready."""
    await wait_known(client)
    task = await client.create_surely(key, duration_seconds=3)
    body = (await client.wait_terminal([task], seconds=seconds))[task]
    await check_jobs(client, server)
    return body


async def wait_known(client):
    """Waits until the API knows the model: an empty body is refused for its fields then."""
    path = client.tasks_path
    body = {"model": client.model}
    answer = await wait_status(client, 400, path, method="POST", body=body, seconds=20)
    assert "prompt" in answer.body["errors"]


async def test_two_providers_of_different_styles_serve_at_once(world, client, server):
    await wait_known(client)
    async with world.client() as first:
        await first.simulate()
        ids = await asyncio.gather(
            *(first.create_surely(f"style-a-{n}", duration_seconds=3) for n in range(4))
        )
        others = await asyncio.gather(
            *(client.create_surely(f"style-b-{n}", duration_seconds=3) for n in range(4))
        )
        ended = await first.wait_terminal(ids)
        assert {body["status"] for body in ended.values()} == {"completed"}
        await check_invariants(first, jobs="exactly one")
        bodies = await client.wait_terminal(others)
        for body in bodies.values():
            assert (body["status"], body["usage"]["cost"]) == ("completed", 0.15)
            (video,) = body["videos"]
            fetched = await client.request("GET", "", base=video["url"], key=None)
            assert fetched.raw == VIDEO
        await check_jobs(client, server)
        await check_money(world, client)


FAULTS = {
    "an answer that is lost after the job was made": ("submit", "cut", True, None),
    "429 with Retry-After": ("submit", "status", False, (429, "1")),
    "polls that fail in a 200": ("poll", "error", False, ("INTERNAL", "Something is wrong.")),
    "a result of another shape": ("result", "nonsense", False, '{"ok": true, "artifacts": []}'),
}
"""One fault of each kind of answer; tests/unit/providers tells all of them apart."""


@pytest.mark.parametrize("fault", FAULTS)
async def test_task_completes_with_one_job_in_spite_of(client, server, fault):
    call, kind, after, detail = FAULTS[fault]
    server.misbehave(call, kind, after=after, detail=detail)
    assert (await run_one(client, server, f"fault {fault}"))["status"] == "completed"


@pytest.mark.parametrize("step", ["after-intent", "after-submit"] if IS_WHOLE else ["after-submit"])
async def test_operator_killed_around_the_submission_makes_one_job(client, server, step):
    await wait_known(client)
    world = client.world
    server.lag = 2.0
    world.run.restart("operator", {"GATEWAY_FAILPOINTS": step})
    task = await client.create_surely(f"killed {step}", duration_seconds=3)
    await wait_for(lambda: not world.is_alive("operator"), what="death")
    world.run.restart("operator", {})
    body = (await client.wait_terminal([task], seconds=90))[task]
    assert body["status"] == "completed"
    await check_jobs(client, server)
    await check_money(world, client, killed=True)


async def make_pushed(client, server, key):
    """A running task whose provider was given an address, its uid, and its job."""
    await wait_known(client)
    server.seconds = NEVER
    task = await client.create_surely(key, duration_seconds=3)
    uid = read_task(client.world, task)["metadata"]["uid"]

    def is_running():
        return read_task(client.world, task).get("status", {}).get("phase") == "Running"

    await wait_for(is_running, what="Running")
    (job,) = server.made(uid)
    assert job.notify is not None
    assert job.notify.startswith(client.world.env["GATEWAY_BASE_URL"] + "/notices/")
    return task, uid, job


async def test_notice_ends_a_task_while_no_poll_is_due(patient, server):
    task, uid, job = await make_pushed(patient, server, "pushed")
    server.notify_times = 5
    server.finish(uid)
    body = (await patient.wait_terminal([task], seconds=25))[task]
    assert body["status"] == "completed"
    # the first poll would be due 30 s after the submission at the earliest
    assert time.monotonic() - job.made < 30
    assert job.polls <= 2
    await wait_for(lambda: len(server.notified) >= 5, what="all notices answered")
    assert set(server.notified) == {204}
    # late ones do nothing, forged ones are not there
    late = await patient.request("POST", "", base=job.notify, key=None)
    forged = await patient.request("POST", "", base=job.notify[:-2] + "AA", key=None)
    assert (late.status, forged.status) == (204, 404)
    assert (await patient.poll(task)).body == body
    assert job.notify.rpartition("/")[2] not in patient.world.log("api")
    assert job.notify.rpartition("/")[2] not in patient.world.log("operator")


async def test_flood_of_good_notices_does_not_reach_the_provider(patient, server):
    task, uid, job = await make_pushed(patient, server, "flood")
    began = time.monotonic()
    statuses = set()
    while time.monotonic() - began < 5:
        content = {"base": job.notify, "key": None}
        answers = [patient.request("POST", "", **content) for _ in range(20)]
        statuses |= {answer.status for answer in await asyncio.gather(*answers)}
    assert statuses == {204}
    assert job.polls <= 5, "1, 2 and 4 s apart"
    server.finish(uid)
    body = (await patient.wait_terminal([task], seconds=25))[task]
    assert body["status"] == "completed"
