"""F1: kill -9 of the operator and the API at named steps, with tasks in flight (I1 to I9)."""

import asyncio
import secrets

import pytest

from tests.crash.history import check_money, is_closed
from tests.crash.steps import TASKS, choose
from tests.servers.world import check_invariants, wait_for
from tests.shares import share

KILLS_A_STEP = 25
TASKS_A_KILL = 3
CREATE_SECONDS = 20 * KILLS_A_STEP
"""A create is repeated over as many kills as it meets."""
HIT = 2
"""The step is passed once before it kills, so that tasks are at different places then."""

STEPS = [
    *(("operator", step) for step in choose("operator", TASKS)),
    *(("api", step) for step in choose("api", TASKS)),
]


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
