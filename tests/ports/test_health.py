"""Reports on the health of providers, asked of the fake and of Redis alike."""

import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pytest

from gateway_core.providers import health
from gateway_core.providers.health import HealthReports
from tests.fakes.health import FakeHealthReports
from tests.ports.counters_stores import age_keys
from tests.servers.server import RedisServer


@dataclass
class Boards:
    """The reports of two gateways; `expire` lets reports expire that are not written again."""

    one: HealthReports
    other: HealthReports
    expire: Callable[[], None]


@pytest.fixture(params=["fake", "redis"])
async def boards(request: pytest.FixtureRequest) -> AsyncIterator[Boards]:
    if request.param == "fake":
        fake = FakeHealthReports()

        def expire() -> None:
            fake.now += health.EXPIRE_SECONDS

        yield Boards(fake, FakeHealthReports(), expire)
        return
    server: RedisServer = request.getfixturevalue("redis_server")
    names = [secrets.token_hex(8) for _ in range(2)]
    made = [HealthReports(server.url, namespace=name) for name in names]
    yield Boards(made[0], made[1], lambda: age_keys(server, names[0], health.EXPIRE_SECONDS))
    for each in made:
        await each.close()


async def test_last_report_of_each_process_is_read_within_its_gateway(boards: Boards) -> None:
    assert await boards.one.read() == []
    await boards.one.write("api-1", b"old")
    await boards.one.write("api-1", b"new")
    await boards.one.write("api-2", b"other")
    assert sorted(await boards.one.read()) == [b"new", b"other"]
    assert await boards.other.read() == []


async def test_report_expires_unless_it_is_written_again(boards: Boards) -> None:
    await boards.one.write("api-1", b"dead")
    boards.expire()
    await boards.one.write("api-2", b"alive")
    assert await boards.one.read() == [b"alive"]
