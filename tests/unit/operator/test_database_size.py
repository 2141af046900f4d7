"""The record's size against its quota: the mark that stops intake is set, renewed and cleared."""

import pytest

from gateway_core.redis.link import CountersUnavailable
from gateway_operator.metrics import Metrics
from gateway_operator.retention.sweeps import MARK_SECONDS, DatabaseSize
from tests.fakes.intake import FakeIntakeStop
from tests.fakes.kubernetes import FakeKubernetes


class Simulation:
    """A record of 1,000 bytes' quota."""

    def __init__(self) -> None:
        self.kube, self.stop, self.metrics = FakeKubernetes(), FakeIntakeStop(), Metrics()
        self.space = DatabaseSize(
            self.kube.read_etcd_size, self.stop, self.metrics, quota=1000, stop_percent=80
        )

    async def sample(self, size: int) -> bool:
        self.kube.size = size
        await self.space.sample()
        return await self.stop.is_set()


@pytest.fixture
def sim() -> Simulation:
    return Simulation()


async def test_mark_is_set_from_the_percentage_on_and_cleared_below_it(sim: Simulation) -> None:
    assert not await sim.sample(799)
    assert await sim.sample(800)
    assert await sim.sample(1200)
    assert not await sim.sample(799)
    assert sim.metrics.registry.get_sample_value("gateway_record_size_bytes") == 799
    assert sim.metrics.registry.get_sample_value("gateway_record_quota_bytes") == 1000


async def test_mark_expires_without_samples(sim: Simulation) -> None:
    assert await sim.sample(900)
    sim.stop.now += MARK_SECONDS - 1
    assert await sim.sample(900)
    sim.stop.now += MARK_SECONDS - 1
    assert await sim.stop.is_set()
    sim.stop.now += 1
    assert not await sim.stop.is_set()


async def test_another_owners_mark_is_cleared_where_there_is_space(sim: Simulation) -> None:
    await sim.stop.set(60)
    assert not await sim.sample(10)


async def test_store_that_is_away_fails_the_sample_and_not_the_size(sim: Simulation) -> None:
    sim.stop.away = True
    sim.kube.size = 900
    with pytest.raises(CountersUnavailable):
        await sim.space.sample()
    assert sim.metrics.registry.get_sample_value("gateway_record_size_bytes") == 900
