"""Promises of `TransientStore`, of its fake and on a real Redis."""

import asyncio
import secrets

import pytest

from gateway_core.redis.transient import TransientStore
from tests.fakes.transient import FakeTransient
from tests.ports.counters_stores import age_keys


@pytest.fixture(params=["fake", "redis"])
async def transient(request: pytest.FixtureRequest):
    if request.param == "fake":
        yield FakeTransient()
        return
    server, namespace = request.getfixturevalue("redis_server"), secrets.token_hex(4)
    store = TransientStore(server.url, namespace=namespace)
    store.pass_time = lambda seconds: age_keys(server, namespace, seconds)
    yield store
    await store.close()


def pass_time(store: TransientStore, seconds: float) -> None:
    if isinstance(store, FakeTransient):
        store.now += seconds
    else:
        store.pass_time(seconds)


async def test_value_is_read_until_removed_or_over(transient: TransientStore) -> None:
    assert await transient.read("a") is None
    await transient.put("a", b"\x00value", 60)
    assert await transient.read("a") == b"\x00value"
    await transient.remove("a")
    assert await transient.read("a") is None
    await transient.put("a", b"value", 1)
    pass_time(transient, 1.1)
    assert await transient.read("a") is None
    assert await transient.take("a") is None


async def test_group_keeps_its_newest_values(transient: TransientStore) -> None:
    async def put(name: str, group: str = "group") -> None:
        await transient.put_in(group, name, name.encode(), 60, most=3, group_seconds=60)

    async def find() -> str:
        return "".join([name for name in "abcdefg" if await transient.read(name)])

    await put("g", "other")
    for name in "abc":
        await put(name)
    await transient.remove("b")
    await put("d")
    assert await find() == "acdg"
    await put("e")
    await asyncio.gather(*(put(name) for name in "bf"))
    assert await find() == "befg"


async def test_reading_may_extend_the_life(transient: TransientStore) -> None:
    await transient.put("a", b"value", 1)
    assert await transient.read("a", extend=60) == b"value"
    pass_time(transient, 1.1)
    assert await transient.read("a") == b"value"


async def test_value_is_given_to_one_of_concurrent_takes(transient: TransientStore) -> None:
    await transient.put("a", b"value", 60)
    found = await asyncio.gather(*(transient.take("a") for _ in range(20)))
    assert sorted(filter(None, found)) == [b"value"]


async def test_counts_begin_anew_after_their_window_or_a_removal(
    transient: TransientStore,
) -> None:
    counted = await asyncio.gather(*(transient.count("a", 2) for _ in range(10)))
    assert sorted(number for number, _ in counted) == list(range(1, 11))
    assert {left for _, left in counted} <= {1, 2}
    await transient.remove("a")
    assert (await transient.count("a", 1))[0] == 1
    pass_time(transient, 1.1)
    assert (await transient.count("a", 1))[0] == 1
    assert (await transient.count("b", 1))[0] == 1


async def test_names_of_two_gateways_are_apart(redis_server) -> None:
    first, second = (TransientStore(redis_server.url, namespace=n) for n in ("one", "two"))
    try:
        await first.put("a", b"value", 60)
        assert await second.read("a") is None
    finally:
        await first.close()
        await second.close()
