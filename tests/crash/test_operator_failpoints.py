"""kill -9 of the operator at every named step, with tasks in flight (I1, I2, I3, I9)."""

import pytest

from gateway_operator.failpoints import NAMES
from tests.servers.world import World, check_invariants, list_tasks, wait_for

pytestmark = pytest.mark.slow

HITS = (1, 3)


@pytest.fixture(scope="module")
def world():
    with World() as running:
        yield running


@pytest.mark.parametrize("hit", HITS)
@pytest.mark.parametrize("step", NAMES)
async def test_operator_killed_at_step_loses_and_doubles_nothing(world, step, hit):
    async with world.client() as client:
        await client.simulate()
        world.run.restart("operator", {"GATEWAY_FAILPOINTS": f"{step}:{hit}"})
        for number in range(4):
            await client.create_surely(f"{step}-{hit}-{number}", duration_seconds=3)
        await wait_for(lambda: not world.is_alive("operator"), what=f"death at {step}")
        world.run.restart("operator", {})
        counts = await check_invariants(client, jobs="exactly one")
        assert counts["ended"] == 4
        for task_id in client.history.accepted:
            body = client.history.polled[task_id][-1]
            assert body["status"] == "completed", body
        # nothing is left behind: every ended task is closed
        await wait_for(
            lambda: (
                not any(
                    list_tasks(world)[task_id]["metadata"].get("finalizers")
                    for task_id in client.history.accepted
                )
            ),
            what="all finalizers gone",
        )
        balance = (await client.request("GET", "/api/v1/me/balance")).body
        assert balance["spent_cents_total"] * 10_000 == charged_total(world), balance
        assert balance["balance_cents"] == balance["paid_balance_cents"]


def charged_total(world):
    """Micro-dollars of all completed tasks of the first account, by their objects."""
    return sum(
        obj["status"].get("chargedMicros", 0)
        for obj in list_tasks(world).values()
        if obj["spec"]["request"]["accountName"] == "demo"
    )
