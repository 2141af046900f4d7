"""Providers without idempotency keys: look-up by reference, or the declared policy (I2)."""

import pytest

from tests.crash.history import wait_settled
from tests.servers.world import check_invariants, wait_for
from tests.shares import long_run

# a hold that is left to the sweeper takes minutes
pytestmark = [pytest.mark.timeout(420)]


@pytest.fixture
def without_keys(world):
    """The local run's provider with its idempotency header, and on request its look-up, removed."""
    original = world.read("gatewayprovider", "simulated")

    def change(*, lookup: bool, policy: str = "Fail"):
        merge(
            world,
            {
                "onUnknownSubmission": policy,
                "http": {
                    "requestTimeoutSeconds": 2,
                    "submit": {"idempotencyHeader": None},
                    **({} if lookup else {"lookup": None}),
                },
            },
        )

    yield change
    merge(world, original["spec"])


def merge(world, spec):
    """Changes the provider; the operator knows it before a task is made."""
    world.patch("gatewayprovider", "simulated", spec)
    generation = world.read("gatewayprovider", "simulated")["metadata"]["generation"]
    world.run.kubectl(
        "wait",
        f"--for=jsonpath={{.status.observedGeneration}}={generation}",
        "gatewayprovider/simulated",
        "--timeout=20s",
    )


async def test_kill_after_submit_is_resolved_by_lookup(world, without_keys):
    without_keys(lookup=True)
    async with world.client() as client:
        await client.simulate()
        world.run.restart("operator", {"GATEWAY_FAILPOINTS": "after-submit"})
        task = await client.create_surely("lookup-1", duration_seconds=3)
        await wait_for(lambda: not world.is_alive("operator"), what="death")
        world.run.restart("operator", {})
        body = (await client.wait_terminal([task]))[task]
        assert body["status"] == "completed"
        await check_invariants(client, jobs="exactly one")


async def test_lost_answer_is_resolved_by_lookup(world, without_keys):
    without_keys(lookup=True)
    async with world.client() as client:
        await client.simulate(
            {"behaviour": "drop", "when": "after", "count": 1, "match": {"on": "submit"}}
        )
        task = await client.create_surely("lookup-2", duration_seconds=3)
        body = (await client.wait_terminal([task]))[task]
        assert body["status"] == "completed"
        await check_invariants(client, jobs="exactly one")


async def test_unknown_outcome_without_any_means_fails_and_costs_nothing(world, without_keys):
    without_keys(lookup=False)
    async with world.client() as client:
        await client.simulate(
            {"behaviour": "drop", "when": "after", "count": 1, "match": {"on": "submit"}}
        )
        # without what the task of another test may hold still
        before = await wait_settled(world, client, killed=True)
        task = await client.create_surely("none-1", duration_seconds=3)
        body = (await client.wait_terminal([task]))[task]
        assert body["status"] == "failed"
        assert "unknown" in body["error"]
        await check_invariants(client, jobs="exactly one")

        async def same_balance():
            return (await client.request("GET", "/api/v1/me/balance")).body == before

        await wait_for(same_balance, what="the hold's release")


@long_run
async def test_unknown_outcome_is_submitted_again_where_the_owner_says_so(world, without_keys):
    without_keys(lookup=False, policy="Resubmit")
    async with world.client() as client:
        await client.simulate(
            {"behaviour": "drop", "when": "before", "count": 1, "match": {"on": "submit"}}
        )
        task = await client.create_surely("resubmit-1", duration_seconds=3)
        body = (await client.wait_terminal([task]))[task]
        assert body["status"] == "completed"
