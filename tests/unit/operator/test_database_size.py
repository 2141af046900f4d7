"""The record's size against its quota: the mark that stops intake is set, renewed and cleared."""

import pytest

from gateway_core.redis.link import CountersUnavailable
from gateway_operator.metrics import Metrics
from gateway_operator.retention.sweeps import MARK_SECONDS, DatabaseSize
from tests.fakes.intake import FakeIntakeStop
from tests.fakes.kubernetes import FakeKubernetes


class Stage:
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


async def test_mark_is_set_from_the_percentage_on_and_cleared_below_it() -> None:
    stage = Stage()
    assert not await stage.sample(799)
    assert await stage.sample(800)
    assert await stage.sample(1200)
    assert not await stage.sample(799)
    assert stage.metrics.registry.get_sample_value("gateway_record_size_bytes") == 799
    assert stage.metrics.registry.get_sample_value("gateway_record_quota_bytes") == 1000


async def test_mark_lapses_where_no_sample_is_taken_any_more() -> None:
    stage = Stage()
    assert await stage.sample(900)
    stage.stop.now += MARK_SECONDS - 1
    assert await stage.sample(900)
    stage.stop.now += MARK_SECONDS - 1
    assert await stage.stop.is_set()
    stage.stop.now += 1
    assert not await stage.stop.is_set()


async def test_another_owners_mark_is_cleared_where_there_is_space() -> None:
    stage = Stage()
    await stage.stop.set(60)
    assert not await stage.sample(10)


async def test_store_that_is_away_fails_the_sample_and_not_the_size() -> None:
    stage = Stage()
    stage.stop.away = True
    stage.kube.size = 900
    with pytest.raises(CountersUnavailable):
        await stage.space.sample()
    assert stage.metrics.registry.get_sample_value("gateway_record_size_bytes") == 900
