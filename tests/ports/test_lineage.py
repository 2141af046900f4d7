"""The lineage of the record, on a real Kubernetes API and a real Redis."""

import secrets

import pytest

from gateway_core.billing.counters import Ledger
from gateway_core.billing.redis_counters import Counters
from gateway_core.kube.errors import WriteConflict
from gateway_core.kube.lineage import LINEAGE_LEASE, Lineage
from gateway_core.redis.link import CountersStale
from gateway_core.redis.transient import TransientStore
from gateway_operator.lineage import LineageHeartbeat, RedisLineage
from tests.ports.counters_stores import rebuild
from tests.servers.control_plane import ControlPlane
from tests.servers.server import RedisServer


async def test_tokens_of_all_writers_are_kept_and_a_late_one_conflicts(
    control_plane: ControlPlane,
) -> None:
    async with control_plane.kube() as kube:
        first, second, reader = (Lineage(kube) for _ in range(3))
        tokens = await first.extend("one")
        assert await reader.read() == tokens
        assert (await second.extend("two"))[:-1] == tokens[-99:]
        assert (await first.extend("one"))[-3] == tokens[-1]
        assert len(await reader.read()) >= 3
        lease, _ = await kube.find_lease(LINEAGE_LEASE)
        assert lease is not None
        assert lease["spec"]["holderIdentity"] == "one"
        await second.extend("two")
        stale = lease["metadata"]["resourceVersion"]
        with pytest.raises(WriteConflict):
            await kube.renew_lease(LINEAGE_LEASE, "one", version=stale)
        assert (await kube.find_lease("none"))[0] is None


async def test_redis_of_a_lost_future_is_emptied_and_that_of_others_kept(
    control_plane: ControlPlane, redis_server: RedisServer
) -> None:
    namespace = secrets.token_hex(4)
    own = TransientStore(redis_server.url, namespace=namespace)
    other = TransientStore(redis_server.url, namespace=f"{namespace}-other")
    trail = RedisLineage(redis_server.url, namespace=namespace)
    counters = Counters(redis_server.url, namespace=namespace)
    async with control_plane.kube() as kube:
        heartbeat = LineageHeartbeat(Lineage(kube), trail, counters, "one")
        await heartbeat.renew()
        first = await trail.read()
        assert first in await Lineage(kube).read()
        for store in (own, other):
            await store.put("a", b"value", 600)
        # the operator has missed that another has renewed the Lease and Redis
        [*_, latest] = await Lineage(kube).extend("two")
        await trail.write(latest)
        await heartbeat.renew()
        assert await own.read("a") == b"value"
        # Redis as it was at an earlier time: only sums are rebuilt
        await rebuild(counters, "demo", Ledger(12))
        await heartbeat.renew()
        assert (await counters.read_spending("demo", "")).charged == 12
        await trail.write(first)
        await heartbeat.renew()
        with pytest.raises(CountersStale):
            await counters.read_spending("demo", "")
        assert await own.read("a") == b"value"
        await trail.write("0badcafe")
        await heartbeat.renew()
        assert await own.read("a") is None
        assert await other.read("a") == b"value"
        assert await trail.read() in await Lineage(kube).read()
        assert await trail.read() != first
    for adapter in (own, other, trail, counters):
        await adapter.close()
