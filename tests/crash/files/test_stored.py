"""kill -9 of operator and API while files are created, deleted, and uploads settled (I5, I6, I9).

What the record says is in the store and in the ledger afterwards, no byte more and none less.
"""

import secrets

import pytest

from gateway_core.api.file import GatewayFile
from gateway_core.api.upload import GatewayUpload
from gateway_core.redis.link import CountersStale, CountersUnavailable
from tests.crash.steps import STORED, choose
from tests.crash.storage import SOON, create_file
from tests.servers.stored import Stored
from tests.servers.tenants import open_tenant, wait_known
from tests.servers.world import World, wait_for
from tests.shares import share

FILES, UPLOADS = GatewayFile.plural, GatewayUpload.plural
STEPS = choose("operator", STORED)
CREATION = choose("api", STORED)
KILLS_A_STEP = 25


@pytest.fixture(scope="module")
def world(control_plane):
    """A gateway whose operator compares record, store and ledger all the time."""
    with World(control_plane, extra_env={"operator": SOON}) as running:
        yield running


async def is_settled(stored: Stored) -> bool:
    """Whether nothing is left to do for any file or Upload."""
    uploads, files = await stored.list_all(UPLOADS), await stored.list_all(FILES)
    return all(
        obj["spec"]["outcome"] == "Pending" or obj.get("status", {}).get("work") == "Settled"
        for obj in uploads
    ) and all("deletionTimestamp" not in obj["metadata"] for obj in files)


async def check(stored: Stored, expected: dict[str, bytes]) -> None:
    """The account has these files, whole, and nothing else is stored or counted."""
    await wait_for(lambda: is_settled(stored), what="every end settled", seconds=40)
    files = {obj["metadata"]["name"]: obj for obj in await stored.list_all(FILES)}
    assert files.keys() == expected.keys(), "I5, I9"
    keys: set[str] = set()
    for name, data in expected.items():
        segments = files[name]["spec"]["request"]["segments"]
        keys |= {segment["key"] for segment in segments}
        found = b"".join([await stored.store.get(segment["key"]) for segment in segments])
        assert found == data, "I9: a byte of a file is lost"

    async def has_no_orphan() -> bool:
        return set(await stored.list_keys()) == keys

    async def is_counted() -> bool:
        try:
            return await stored.read_used() == sum(map(len, expected.values()))
        except (CountersUnavailable, CountersStale):
            # the operator makes it anew from the record at the same time
            return False

    await wait_for(has_no_orphan, what="the orphans' end", seconds=30)
    await wait_for(is_counted, what="I6: the ledger's agreement", seconds=30)


async def provoke(stored: Stored, step: str, expected: dict[str, bytes]) -> None:
    """Has the operator come by `step`."""
    data = secrets.token_bytes(1000)
    if step == "before-orphan-removal":
        await stored.add_orphan()
    elif step == "after-file-upload":
        # an Upload that became a file is settled with that at the latest
        upload, parts = await stored.add_upload(data)
        name = await stored.complete(upload, parts)
        await wait_for(lambda: has_file(stored, name), what="the file")
        await stored.kube.delete(FILES, name)
    elif step.startswith("after-file"):
        await stored.kube.delete(FILES, await stored.add_file(data))
    elif step == "after-upload-outcome":
        upload, _ = await stored.add_upload(data)
        await stored.kube.delete(UPLOADS, upload)
    else:
        upload, parts = await stored.add_upload(data[:400], data[400:])
        expected[await stored.complete(upload, parts)] = data


async def has_file(stored: Stored, name: str) -> bool:
    return any(obj["metadata"]["name"] == name for obj in await stored.list_all(FILES))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kill", range(share(KILLS_A_STEP)))
async def test_operator_killed_at_steps_leaves_what_the_record_says(world, tally, kill):
    told = tally("F1", "operator killed while files and uploads are kept")
    async with open_tenant(world) as client, Stored(world, client.account) as stored:
        expected: dict[str, bytes] = {}
        async with told.trial(client, count=len(STEPS)):
            for step in STEPS:
                kept = secrets.token_bytes(2000)
                expected[await stored.add_file(kept)] = kept
                # the next one to be killed clears up after the last
                world.restart_doomed("operator", {**SOON, "GATEWAY_FAILPOINTS": step})
                await provoke(stored, step, expected)
                await wait_for(
                    lambda: not world.is_alive("operator"), what=f"death at {step}", seconds=40
                )
            world.run.restart("operator", SOON)
            await check(stored, expected)
    told.check()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kill", range(share(KILLS_A_STEP)))
async def test_api_killed_in_a_create_leaves_what_the_record_says(world, tally, kill):
    """The client has no answer and sends the file again: that one is whole, and no byte stays."""
    told = tally("F1", "api killed while files are created")
    async with open_tenant(world) as client, Stored(world, client.account) as stored:
        acknowledged: dict[str, bytes] = {}
        async with told.trial(client, count=len(CREATION)):
            for step in CREATION:
                data = secrets.token_bytes(3000)
                world.restart_doomed("api", {"GATEWAY_FAILPOINTS": step})
                await wait_known(client)
                with pytest.raises(ConnectionError):
                    await create_file(client, data)
                await wait_for(lambda: not world.is_alive("api"), what=f"death at {step}")
                world.run.restart("api", {})
                await wait_known(client)
                acknowledged[await create_file(client, data)] = data
            expected = dict(acknowledged)
            for obj in await stored.list_all(FILES):
                # one that was made, and its creator killed before he could say so
                if obj["metadata"]["name"] not in acknowledged:
                    expected[obj["metadata"]["name"]] = acknowledged[list(acknowledged)[-1]]
            assert len(expected) == len(acknowledged) + ("after-file-object" in CREATION)
            await check(stored, expected)
            for name in expected:
                await stored.kube.delete(FILES, name)
            await check(stored, {})
    told.check()
