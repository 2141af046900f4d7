"""An object store that hangs: requests that need it end soon, and the others do not notice."""

import asyncio
from typing import Any

import pytest

from gateway_apiserver.media import MediaParts, create_media_app
from gateway_core.files.addresses import MediaItem, MediaSigner, Sealer, TemporaryAddresses
from gateway_core.storage import limits
from gateway_core.storage.limits import (
    ARCHIVE_SECONDS,
    INPUT_SECONDS,
    MEDIA_SECONDS,
    StoreTimeout,
)
from gateway_core.storage.objects import StoreUnavailable
from tests.fakes.clock import in_virtual_time
from tests.fakes.objects import FakeObjects
from tests.unit.apiserver.gateway import COMPLETED, Answer, Gateway, body, call, random_id


async def hang(*_: Any, **__: Any) -> Any:
    await asyncio.get_running_loop().create_future()


def stop(store: FakeObjects) -> None:
    """Has every call of it hang from now on."""
    for name in ("get", "head", "put"):
        setattr(store, name, hang)


async def time_answer(request: Any) -> tuple[Answer, float]:
    """The answer and after how many seconds it came."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    answer = await asyncio.wait_for(request, 60)
    return answer, loop.time() - begin


@in_virtual_time
async def test_call_that_needs_the_archive_is_503_in_time() -> None:
    gateway = Gateway()
    stop(gateway.store)
    for request in (
        gateway.poll(random_id(gateway.mint)),
        gateway.create(idempotency_key="k"),
    ):
        answer, seconds = await time_answer(request)
        assert answer.status == 503
        assert 1 <= int(answer.headers["retry-after"]) <= 120
        assert seconds <= ARCHIVE_SECONDS + 0.1
    assert gateway.task_count() == 0


@in_virtual_time
async def test_input_that_cannot_be_stored_in_time_leaves_no_task_and_no_hold() -> None:
    gateway = Gateway()
    await gateway.create()
    stop(gateway.store)
    answer, seconds = await time_answer(gateway.create(body(prompt="x" * 9000)))
    assert answer.status == 503
    assert seconds <= INPUT_SECONDS + 0.1
    assert gateway.task_count() == 1
    assert await gateway.held() == 500_000


@in_virtual_time
async def test_call_that_needs_no_store_is_answered_at_once() -> None:
    gateway = Gateway()
    ended = (await gateway.create()).json["id"]
    gateway.end_task(ended, COMPLETED)
    stop(gateway.store)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "MOST_STORE_WAITERS", 20)
        polls = (gateway.poll(random_id(gateway.mint)) for _ in range(30))
        waiting = [asyncio.create_task(poll) for poll in polls]
        await asyncio.sleep(0.1)
        answer, seconds = await time_answer(gateway.poll(ended))
        assert (answer.json["status"], seconds) == ("completed", 0)
        answer, seconds = await time_answer(gateway.create())
        assert (answer.status, seconds) == (202, 0)
        assert {answer.status for answer in await asyncio.gather(*waiting)} == {503}


@in_virtual_time
async def test_video_that_cannot_be_read_is_503_in_time() -> None:
    store, signer = FakeObjects(), MediaSigner(b"m" * 32)
    item = MediaItem("0f0e0d0c-0b0a-4908-8706-050403020100", 0)
    await store.put(item.key, b"video")
    app = create_media_app(
        MediaParts(store, signer, TemporaryAddresses(Sealer(b"m" * 32))), lambda: 0
    )
    path = signer.sign(item, "video/mp4", 60)
    store.get = hang  # type: ignore[method-assign]
    answer, seconds = await time_answer(call(app, "GET", path))
    assert (answer.status, seconds <= MEDIA_SECONDS + 0.1) == (503, True)


@in_virtual_time
async def test_calls_beyond_those_that_may_wait_are_refused_at_once() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "MOST_STORE_WAITERS", 2)
        await check_waiters()


async def check_waiters() -> None:
    bound = StoreTimeout(2.0)

    async def wait() -> None:
        async with bound.bound():
            await asyncio.sleep(1)

    waits = [asyncio.create_task(wait()) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(StoreUnavailable):
        await wait()
    await asyncio.gather(*waits)
    await wait()
