"""Fixtures of the port tests: every port's fake and its adapter go through the same class."""

from collections.abc import AsyncIterator, Iterator

import pytest

from gateway_core.redis import batches, link
from tests.ports.counters_stores import CountersStore, FakeStore, RedisStore
from tests.servers.s3_double import S3Double
from tests.servers.server import RedisServer


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine may stand still for seconds; `test_redis_faults` has the limits themselves."""
    for module in (link, batches):
        monkeypatch.setattr(module, "COMMAND_SECONDS", 30.0)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def s3_double() -> Iterator[S3Double]:
    with S3Double() as server:
        yield server


@pytest.fixture(params=["fake", "redis"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[CountersStore]:
    made: CountersStore
    if request.param == "fake":
        made = FakeStore()
    else:
        made = RedisStore(request.getfixturevalue("redis_server"))
    yield made
    await made.close()
