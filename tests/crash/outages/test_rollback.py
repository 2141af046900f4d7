"""etcd is restored to an earlier state while the gateway runs: its caches know a lost future.

docs/operations/backup.md describes both ways of a restore.
"""

import json
import secrets

import pytest

from gateway_core.kube.lineage import ANNOTATION, CHECK_SECONDS, LINEAGE_LEASE
from tests.crash.history import wait_charged
from tests.faults.machine import Stopwatch
from tests.servers.etcd import BUMPED, restore_snapshot, save_snapshot
from tests.servers.mcp import McpCaller
from tests.servers.tenants import (
    describe_key,
    make_key,
    open_tenant,
    read_balance,
    wait_known,
    wait_status,
)
from tests.servers.world import World, wait_for
from tests.shares import IS_WHOLE

pytestmark = [pytest.mark.timeout(400)]

NOTICE_SECONDS = 60
WAYS = {"bumped versions": BUMPED, "same versions": ()}
PLAYED = WAYS if IS_WHOLE else [*WAYS][:1]
"""Lower versions are noticed by a comparison that has unit tests."""


@pytest.fixture(scope="module")
def world():
    """A gateway whose supervisor restarts its processes, as Kubernetes does."""
    env = {"operator": {"GATEWAY_HEARTBEAT_SECONDS": "1"}}
    with World(restart=True, mcp=True, extra_env=env) as running:
        yield running


def read_tokens(world):
    """The tokens of the record's lineage."""
    lease = json.loads(world.run.kubectl("get", "lease", LINEAGE_LEASE, "-o", "json"))
    return lease["metadata"].get("annotations", {}).get(ANNOTATION, "").split()


async def wait_lineage(world):
    """Waits until each process has read a token that is added from now on."""
    tokens = read_tokens(world)
    latest = tokens[-1]

    def is_read():
        now = read_tokens(world)
        return len(now) - now.index(latest) > CHECK_SECONDS * 2

    await wait_for(is_read, what="a token that all have read", seconds=60)


@pytest.mark.parametrize("way", PLAYED)
async def test_caches_and_balance_follow_a_restored_record(world, tmp_path, way, tally):
    told = tally("F27", f"etcd restored to an earlier state, {way}")
    async with open_tenant(world) as client:
        kept = make_key(world, client.account)
        await wait_known(client, key=kept.plaintext)
        task = await client.create_surely(secrets.token_hex(4), duration_seconds=3)
        paid = (await client.wait_terminal([task]))[task]
        before = await wait_charged(client, paid)
        save_snapshot(world, tmp_path / "snapshot.db")

        lost, lost_object = describe_key(world, client.account)
        world.apply(lost_object)
        await wait_known(client, key=lost.plaintext)
        world.run.kubectl("delete", "gatewaykey", kept.name)
        await wait_status(client, 401, key=kept.plaintext)
        world.patch("gatewayaccount", client.account, {"funds": {"paidMicros": 600_000_000}})
        later = await client.create_surely(secrets.token_hex(4), duration_seconds=3)
        await client.wait_terminal([later])

        async def is_paid():
            return (await read_balance(client))["paid_balance_cents"] > 50_000

        await wait_for(is_paid, what="the money that will be lost")
        await wait_lineage(world)
        restore_snapshot(world, tmp_path / "snapshot.db", *WAYS[way])

        async def is_followed():
            try:
                keys = [
                    (await client.request("GET", "/api/v1/me", key=key.plaintext)).status
                    for key in (lost, kept)
                ]
                balance = await client.request("GET", "/api/v1/me/balance")
                async with McpCaller(world.config.mcp_url, lost.plaintext) as mcp:
                    status, _ = await mcp.send("tools/list")
            except OSError:
                return False
            return keys == [401, 200] and status == 401 and balance.body == before

        async with told.trial(client):
            with Stopwatch() as timed:
                await wait_for(is_followed, what="the restored record", seconds=NOTICE_SECONDS)
            told.note("followed after s", timed.seconds)
            fresh = await client.create_surely(secrets.token_hex(4), duration_seconds=3)
            again = (await client.wait_terminal([fresh]))[fresh]
            assert again["status"] == "completed"
            await wait_charged(client, paid, again)
    told.check()
