"""What `ports.intake` promises, asked of the fake and of Redis alike."""

import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pytest

from gateway_core.admission.intake import IntakeStop
from tests.fakes.intake import FakeIntakeStop
from tests.ports.counters_stores import age_keys
from tests.servers.server import RedisServer


@dataclass
class Marks:
    """The marks of two gateways; `pass_time` lets time pass where they are."""

    one: IntakeStop
    other: IntakeStop
    pass_time: Callable[[float], None]


@pytest.fixture(params=["fake", "redis"])
async def marks(request: pytest.FixtureRequest) -> AsyncIterator[Marks]:
    if request.param == "fake":
        fake = FakeIntakeStop()

        def pass_time(seconds: float) -> None:
            fake.now += seconds

        yield Marks(fake, FakeIntakeStop(), pass_time)
        return
    server: RedisServer = request.getfixturevalue("redis_server")
    names = [secrets.token_hex(8) for _ in range(2)]
    made = [IntakeStop(server.url, namespace=name) for name in names]
    yield Marks(made[0], made[1], lambda seconds: age_keys(server, names[0], seconds))
    for each in made:
        await each.close()


async def test_mark_is_of_one_gateway_until_it_is_cleared(marks: Marks) -> None:
    assert not await marks.one.is_set()
    await marks.one.clear()
    await marks.one.set(60)
    await marks.one.set(60)
    assert (await marks.one.is_set(), await marks.other.is_set()) == (True, False)
    await marks.one.clear()
    assert not await marks.one.is_set()


async def test_mark_lapses_unless_it_is_set_again(marks: Marks) -> None:
    await marks.one.set(1)
    marks.pass_time(1.2)
    assert not await marks.one.is_set()
