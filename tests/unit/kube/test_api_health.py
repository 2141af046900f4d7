"""A Kubernetes API that does not answer: doubted after a second, asked once for all, believed."""

import asyncio
import time

import pytest

from gateway_core.api.errors import Unavailable
from gateway_core.kube import api_health
from gateway_core.kube.api_health import ApiHealth
from gateway_core.kube.errors import AlreadyExists, KubernetesUnavailable
from tests.fakes.clock import in_virtual_time
from tests.fakes.kubernetes import FakeKubernetes


class Hanging(FakeKubernetes):
    """Answers reads when it is told to, and counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.going = asyncio.Event()

    async def get(self, plural: str, name: str) -> dict[str, object]:
        self.reads += 1
        await self.going.wait()
        return await super().get(plural, name)


@pytest.fixture
def kube() -> Hanging:
    return Hanging()


def make_health(kube: Hanging) -> ApiHealth:
    """One whose clock is the loop's, which a test may have run by itself."""
    return ApiHealth(kube, clock=asyncio.get_running_loop().time)


async def fail(health: ApiHealth) -> None:
    with pytest.raises(KubernetesUnavailable):
        async with health.listen():
            raise KubernetesUnavailable("away")


@in_virtual_time
async def test_check_reads_nothing_while_calls_succeed(kube: Hanging) -> None:
    health = make_health(kube)
    async with health.listen():
        pass
    await health.check()
    assert kube.reads == 0


@in_virtual_time
async def test_after_a_failure_all_wait_for_one_read_and_are_refused_alike(
    kube: Hanging,
) -> None:
    health = make_health(kube)
    await fail(health)
    found = await asyncio.gather(*(health.check() for _ in range(20)), return_exceptions=True)
    assert {type(error) for error in found} == {Unavailable}
    assert kube.reads == 1
    with pytest.raises(Unavailable):
        await health.check()
    assert kube.reads == 1  # not asked again so soon


@in_virtual_time
async def test_call_that_hangs_is_doubted_before_it_ends(kube: Hanging) -> None:
    health = make_health(kube)
    async with health.listen(), asyncio.timeout(10):
        with pytest.raises(Unavailable):  # noqa: PT012
            while True:
                await health.check()
                await asyncio.sleep(0.005)
    await health.check()  # it has been answered after all
    assert kube.reads == 1


@in_virtual_time
async def test_answered_read_ends_the_doubt(kube: Hanging) -> None:
    health = make_health(kube)
    await fail(health)
    kube.going.set()
    await health.check()
    await health.check()
    assert kube.reads == 1


@in_virtual_time
async def test_conflict_is_an_answer(kube: Hanging) -> None:
    health = make_health(kube)
    with pytest.raises(AlreadyExists):
        async with health.listen():
            raise AlreadyExists("there")
    await health.check()
    assert kube.reads == 0


@in_virtual_time
async def test_slow_is_not_away_while_others_are_answered(kube: Hanging) -> None:
    health = make_health(kube)
    async with health.listen(gives_up=True):
        for _ in range(10):
            await asyncio.sleep(api_health.SLOW_SECONDS / 2)
            async with health.listen():
                pass
        await health.check()
    assert kube.reads == 0


async def test_process_that_was_held_up_doubts_nobody(
    kube: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_health, "SLOW_SECONDS", 0.1)
    health = make_health(kube)
    async with health.listen(gives_up=True):
        time.sleep(0.2)
        # the look that is due is taken, and no time passes until the next
        for _ in range(5):
            await asyncio.sleep(0)
    await health.check()
    assert kube.reads == 0


@in_virtual_time
async def test_read_is_given_up_when_nothing_is_answered(kube: Hanging) -> None:
    health = make_health(kube)
    with pytest.raises(TimeoutError):
        async with health.listen(gives_up=True):
            await kube.get("gatewaytasks", "task-a")
    with pytest.raises(Unavailable):
        await health.check()
