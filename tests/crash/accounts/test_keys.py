"""kill -9 of the operator between a declared key's Secret and its status."""

import pytest

from tests.crash.steps import KEYS, choose
from tests.servers.tenants import describe_declared_key, read_declared, unique, wait_known
from tests.servers.world import World, wait_for
from tests.shares import share

(STEP,) = choose("operator", KEYS)
KILLS = 25


@pytest.mark.parametrize("number", range((share(KILLS) + 1) // 2))
async def test_operator_killed_between_secret_and_status_makes_each_key_once(
    world, payer, tally, number
):
    told = tally("F1", f"operator killed {STEP}")
    async with told.trial(payer, count=2):
        secret = unique("declared")
        obj = describe_declared_key(payer.account, secret, overlapSeconds=600)
        name = obj["metadata"]["name"]

        world.run.restart("operator", {"GATEWAY_FAILPOINTS": STEP})
        world.apply(obj)
        await wait_for(lambda: not world.is_alive("operator"), what=f"death at {STEP}", seconds=40)
        first = await read_declared(world, secret)
        assert "status" not in world.read("gatewaykey", name)
        world.run.restart("operator", {})
        await wait_tokens(world, name, 1)
        await wait_known(payer, first)

        world.run.restart("operator", {"GATEWAY_FAILPOINTS": STEP})
        world.patch("gatewaykey", name, {"rotations": 1})
        await wait_for(lambda: not world.is_alive("operator"), what=f"death at {STEP}", seconds=40)
        second = await read_declared(world, secret, but=first)
        assert (await payer.request("GET", "/api/v1/me", key=first)).status == 200
        world.run.restart("operator", {})
        await wait_tokens(world, name, 2)
        await wait_known(payer, second)
        assert await read_declared(world, secret) == second
        assert (await payer.request("GET", "/api/v1/me", key=first)).status == 200
        assert len(world.read("gatewaykey", name)["status"]["tokens"]) == 2
    told.check()


async def wait_tokens(world: World, name: str, count: int) -> None:
    """Waits until the status has so many tokens; from then on the API is to know of them soon."""

    def has_tokens() -> bool:
        status = world.read("gatewaykey", name).get("status", {})
        return len(status.get("tokens") or ()) == count

    await wait_for(has_tokens, what=f"{count} tokens")
