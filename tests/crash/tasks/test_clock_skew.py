"""F10: a process whose wall clock is wrong, or steps, ends nothing early, late or twice.

By ten minutes for deadlines, and by more than an hour for what lives an hour. Times are taken by
the API server's clock, which is this machine's.
"""

import asyncio
import time
from datetime import UTC, datetime
from itertools import product

import pytest

from gateway_core.api.times import format_time, parse_time
from tests.crash.conftest import FUNDS
from tests.crash.history import check_money
from tests.crash.storage import Uploading
from tests.servers.clocks import SkewedClock
from tests.servers.receivers import Receiver, answer
from tests.servers.tenants import (
    describe_model,
    make_key,
    open_tenant,
    unique,
    wait_known,
    wait_status,
)
from tests.servers.world import check_invariants, read_task, wait_for
from tests.shares import IS_WHOLE

pytestmark = [pytest.mark.timeout(600)]

TRIALS = 2 if IS_WHOLE else 1
"""Of each process and clock: 24 in the long run."""
MINUTES, HOURS = 600, 4000
DEADLINE = 6
"""Seconds after which a task of the slow model fails."""
TOLERANCE = 5.0
"""Seconds by which an end may be late."""
EARLY = 1.5
"""By which it may be early: creation times are in whole seconds, as are the server's `Date`s."""
SHIFTS = {
    "67 min ahead": HOURS,
    "10 min behind": -MINUTES,
    "10 min ahead": MINUTES,
    "67 min behind": -HOURS,
}
SHORT = (("api", "67 min ahead"), ("operator", "10 min behind"))
"""By default each process and each direction once."""
WRONG_CLOCKS = [*product(("api", "operator"), SHIFTS)] if IS_WHOLE else SHORT
STEPS = (-3600, 3600) if IS_WHOLE else (-3600,)


@pytest.fixture(scope="module")
def model(world):
    """A model whose tasks have a short deadline."""
    name = unique("brief")
    service = world.env["GATEWAY_SERVICE"]
    world.apply(describe_model(world, name, service=service, deadlineSeconds=DEADLINE))
    return name


@pytest.fixture
async def client(world, model):
    secret = world.read("gatewayaccount", "demo")["spec"]["webhookSecretRef"]
    async with open_tenant(world, funds=FUNDS, webhookSecretRef=secret) as made:
        await made.simulate(
            {"behaviour": "stall", "match": {"prompt_contains": "never"}},
            {"behaviour": "seconds", "seconds": "0.5"},
        )

        async def is_offered():
            return (await made.create(model=model, duration_seconds=3)).status == 202

        await wait_for(is_offered, what="the model")
        yield made


@pytest.fixture
def clock(world, process, tmp_path):
    """A clock for the process of the test, which has the machine's again afterwards."""
    yield SkewedClock(tmp_path / "clock")
    world.run.restart(process, {})


async def check_deadline(client, model):
    """A task that its provider never ends fails at its deadline, once."""
    task_id = await client.create_surely(
        unique("late"), model=model, prompt="never", duration_seconds=3
    )
    body = (await client.wait_terminal([task_id]))[task_id]
    seen = time.time()
    assert body["status"] == "failed", body
    task = read_task(client.world, task_id)
    created = parse_time(task["metadata"]["creationTimestamp"]).timestamp()
    ended = parse_time(task["status"]["completionTime"]).timestamp()
    for what, moment in (("the record", ended), ("the client", seen)):
        late = moment - created - DEADLINE
        assert -EARLY <= late <= TOLERANCE, f"by {what} the deadline was {late:.1f} s late"


async def check_callback(client, model):
    """A task ends well within its deadline, is charged, and told at once with a fresh signature."""
    async with Receiver() as receiver:
        url = receiver.plan("skew", answer(500))
        task_id = await client.create_surely(
            unique("told"), model=model, duration_seconds=3, callback_url=url
        )
        body = (await client.wait_terminal([task_id]))[task_id]
        assert body["status"] == "completed", body
        first = await wait_for(lambda: receiver.of(task_id), what="the callback")
        said = int(first[0].headers["webhook-timestamp"])
        assert abs(said - first[0].at) <= TOLERANCE, "the signature's time"


async def check_upload(client):
    """An Upload of this moment has not expired, nor has its File, which lives an hour."""
    uploading = Uploading(client)
    life = {"anchor": "created_at", "seconds": 3600}
    upload = await uploading.begin(bytes=1, expires_after=life)
    file = (await complete_upload(client, upload))["file"]
    assert abs(file["created_at"] - time.time()) <= TOLERANCE
    shown = await client.request("GET", f"/v1/files/{file['id']}")
    assert shown.status == 200, shown.raw


async def complete_upload(client, upload):
    """The Upload once it has a part of one byte and is completed."""
    uploading = Uploading(client)
    return await uploading.complete(upload, await uploading.add(upload, b"a"))


async def check_key(client):
    """A key opens until its end, and no longer."""
    ends = time.time() + DEADLINE
    when = format_time(datetime.fromtimestamp(ends, UTC))
    key = make_key(client.world, client.account, expirationTime=when)
    await wait_known(client, key.plaintext)
    await wait_status(client, 401, key=key.plaintext, seconds=DEADLINE + TOLERANCE)
    assert time.time() >= ends - EARLY, "the key's end was early"


async def check_all(world, client, model, before):
    await asyncio.gather(
        check_deadline(client, model),
        check_callback(client, model),
        check_upload(client),
        check_key(client),
    )
    await complete_upload(client, before)
    await check_invariants(client)
    await check_money(world, client)


@pytest.mark.parametrize(("process", "shift"), WRONG_CLOCKS)
async def test_process_with_wrong_clock_keeps_deadlines(
    world, client, model, clock, process, shift, tally
):
    told = tally("F10", f"{process} {shift}")
    for _ in range(TRIALS):
        before = await Uploading(client).begin(bytes=1)
        clock.shift(SHIFTS[shift])
        world.run.restart(process, clock.env)
        async with told.trial(client):
            await check_all(world, client, model, before)
    told.check()


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("process", ["api", "operator"])
async def test_step_of_the_clock_of_a_running_process_has_no_effect(
    world, client, model, clock, process, step, tally
):
    told = tally("F10", f"{process}'s clock steps by {step // 60} min")
    world.run.restart(process, clock.env)
    for _ in range(TRIALS):
        before = await Uploading(client).begin(bytes=1)
        clock.shift(0)
        async with told.trial(client):
            checks = asyncio.create_task(check_all(world, client, model, before))
            # while the tasks run
            await asyncio.sleep(DEADLINE / 4)
            clock.shift(step)
            await checks
    told.check()
