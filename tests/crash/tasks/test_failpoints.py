"""F1: kill -9 of the operator and the API at every named step, with tasks in flight (I1 to I9)."""

import asyncio
import secrets

import pytest

from gateway_apiserver.failpoints import NAMES as API_STEPS
from gateway_operator.context import NAMES as OPERATOR_STEPS
from tests.crash.accounts import test_keys, test_remains
from tests.crash.batches import test_batches
from tests.crash.billing import test_journal
from tests.crash.callbacks import test_callbacks
from tests.crash.files import test_stored, test_uploads
from tests.crash.history import check_money, is_closed
from tests.crash.tasks import test_retention
from tests.servers.world import check_invariants, wait_for
from tests.shares import share
from tests.unit.operator import test_batch_kills

KILLS_A_STEP = 25
TASKS_A_KILL = 3
CREATE_SECONDS = 20 * KILLS_A_STEP
"""A create is repeated over as many kills as it meets."""
HIT = 2
"""The step is passed once before it kills, so that tasks are at different places then."""

ALL = {
    *(("operator", step) for step in OPERATOR_STEPS),
    *(("api", step) for step in API_STEPS),
}
ELSEWHERE = {
    *(("operator", step) for step in test_callbacks.STEPS),
    *(("operator", step) for step in test_retention.STEPS if step != "after-fold"),
    *(("operator", step) for step in test_journal.STEPS),
    *(("operator", step) for step in test_stored.STEPS),
    *(("operator", step) for step in test_batches.STEPS),
    ("operator", test_keys.STEP),
    *(("operator", step) for step in test_remains.STEPS),
    *(("api", step) for step in test_uploads.STEPS),
    *(("api", step) for step in test_stored.CREATION),
}
"""Steps that a plain task does not come by; their tests kill there, as often."""

STEPS = sorted(ALL - ELSEWHERE)


@pytest.mark.parametrize(
    ("process", "step"), STEPS, ids=[f"{process}-{step}" for process, step in STEPS]
)
@pytest.mark.timeout(120 + 20 * KILLS_A_STEP)
async def test_process_killed_at_a_step_loses_and_doubles_nothing(
    world, payer, tally, process, step
):
    told, kills = tally("F1", f"{process} killed {step}"), share(KILLS_A_STEP)
    await payer.simulate({"behaviour": "seconds", "seconds": "0.3-1"})
    creations = []
    for _ in range(kills):
        world.restart_doomed(process, {"GATEWAY_FAILPOINTS": f"{step}:{HIT}"})
        for _ in range(TASKS_A_KILL):
            key = f"{step}-{secrets.token_hex(4)}"
            creating = payer.create_surely(key, seconds=CREATE_SECONDS, duration_seconds=3)
            creations.append(asyncio.create_task(creating))
        await wait_for(lambda: not world.is_alive(process), what=f"death at {step}", seconds=40)
    world.run.restart(process, {})
    async with told.trial(payer, count=kills):
        ids = await asyncio.gather(*creations)
        assert len(set(ids)) == kills * TASKS_A_KILL, "I9: two keys, one task"
        await check_invariants(payer, jobs="exactly one")
        for task_id in ids:
            body = payer.history.polled[task_id][-1]
            assert body["status"] == "completed", body
        await wait_for(lambda: is_closed(world, payer), what="all finalizers gone")
        await check_money(world, payer, told, killed=True)
    told.check()


def test_batches_are_killed_at_each_of_their_steps() -> None:
    """In virtual time too, where many kills can be combined."""
    assert set(test_batch_kills.STEPS) == set(test_batches.STEPS)


def test_every_step_is_killed_at() -> None:
    assert ELSEWHERE <= ALL, "a step that no process has"
    assert len(STEPS) + len(ELSEWHERE) == len(OPERATOR_STEPS) + len(API_STEPS)
