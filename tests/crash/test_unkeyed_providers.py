"""Providers without idempotency keys: look-up by reference, or the declared policy (I2)."""

import json

import pytest

from tests.servers.world import check_invariants, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def without_keys(world):
    """The local run's provider with its idempotency header, and on request its look-up, removed."""
    original = json.loads(world.run.kubectl("get", "gatewayprovider", "simulated", "-o", "json"))

    def change(*, lookup: bool, policy: str = "Fail"):
        patch = {
            "spec": {
                "onUnknownSubmission": policy,
                "http": {
                    "requestTimeoutSeconds": 2,
                    "submit": {"idempotencyHeader": None},
                    **({} if lookup else {"lookup": None}),
                },
            }
        }
        world.run.kubectl(
            "patch", "gatewayprovider", "simulated", "--type=merge", "-p", json.dumps(patch)
        )
        # the operator must know the change before a task is made
        generation = json.loads(
            world.run.kubectl("get", "gatewayprovider", "simulated", "-o", "json")
        )["metadata"]["generation"]
        world.run.kubectl(
            "wait",
            f"--for=jsonpath={{.status.observedGeneration}}={generation}",
            "gatewayprovider/simulated",
            "--timeout=20s",
        )

    yield change
    spec = {"spec": original["spec"]}
    world.run.kubectl(
        "patch", "gatewayprovider", "simulated", "--type=merge", "-p", json.dumps(spec)
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
        before = (await client.request("GET", "/api/v1/me/balance")).body
        task = await client.create_surely("none-1", duration_seconds=3)
        body = (await client.wait_terminal([task]))[task]
        assert body["status"] == "failed"
        assert "unknown" in body["error"]
        await check_invariants(client, jobs="exactly one")

        async def same_balance():
            return (await client.request("GET", "/api/v1/me/balance")).body == before

        await wait_for(same_balance, what="the hold's release")


async def test_unknown_outcome_is_submitted_again_where_the_owner_says_so(world, without_keys):
    without_keys(lookup=False, policy="Resubmit")
    async with world.client() as client:
        await client.simulate(
            {"behaviour": "drop", "when": "before", "count": 1, "match": {"on": "submit"}}
        )
        task = await client.create_surely("resubmit-1", duration_seconds=3)
        body = (await client.wait_terminal([task]))[task]
        assert body["status"] == "completed"
