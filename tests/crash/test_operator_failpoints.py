"""kill -9 of the operator at every named step, with tasks in flight (I1, I2, I3, I9)."""

import pytest

from gateway_operator.failpoints import NAMES
from tests.crash.history import check_money, is_closed
from tests.servers.world import check_invariants, wait_for

pytestmark = pytest.mark.slow

TASKS = 4
HIT = 2
"""The step is passed once before it kills, so that tasks are at different places then."""


STEPS = [step for step in NAMES if "callback" not in step]
"""Those that every task comes by."""


@pytest.mark.parametrize("step", STEPS)
async def test_operator_killed_at_step_loses_and_doubles_nothing(world, step):
    async with world.client() as client:
        await client.simulate()
        world.run.restart("operator", {"GATEWAY_FAILPOINTS": f"{step}:{HIT}"})
        for number in range(TASKS):
            await client.create_surely(f"{step}-{number}", duration_seconds=3)
        await wait_for(lambda: not world.is_alive("operator"), what=f"death at {step}")
        world.run.restart("operator", {})
        counts = await check_invariants(client, jobs="exactly one")
        assert counts["ended"] == TASKS
        for task_id in client.history.accepted:
            body = client.history.polled[task_id][-1]
            assert body["status"] == "completed", body
        await wait_for(lambda: is_closed(world, client), what="all finalizers gone")
        await check_money(world, client)
