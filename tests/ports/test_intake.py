"""What `ports.intake` promises, asked of the fake and of Redis alike."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import pytest

from gateway_core.admission.intake import IntakeStop
from tests.fakes.intake import FakeIntakeStop
from tests.servers.server import RedisServer


@dataclass
class Marks:
    """The marks of two gateways; `sleep` lets time pass where they are."""

    one: IntakeStop
    other: IntakeStop
    sleep: Callable[[float], Awaitable[None]]


@pytest.fixture(params=["fake", "redis"])
async def marks(request: pytest.FixtureRequest) -> AsyncIterator[Marks]:
    if request.param == "fake":
        fake = FakeIntakeStop()

        async def sleep(seconds: float) -> None:
            fake.now += seconds

        yield Marks(fake, FakeIntakeStop(), sleep)
        return
    server: RedisServer = request.getfixturevalue("redis_server")
    made = [IntakeStop(server.url, namespace=secrets.token_hex(8)) for _ in range(2)]
    yield Marks(made[0], made[1], asyncio.sleep)
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
    await marks.sleep(1.2)
    assert not await marks.one.is_set()
