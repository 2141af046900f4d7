"""The bytes of files: whole, in part, unchanged (contract §3.5)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.unit.apiserver.filing import FILES, Cabinet
from tests.unit.apiserver.gateway import Answer, Gateway, call

CONTENT = bytes(range(100))


@pytest.fixture
async def path(gateway: Gateway) -> str:
    made = await Cabinet(gateway).make(CONTENT, filename='na\u00efve \\"x\\".txt')
    return f"{FILES}/{made['id']}/content"


BOUNDS = {"max_downloads": 8, "max_downloads_per_link": 5}


@pytest.fixture
def cabinet(gateway: Gateway) -> Cabinet:
    return Cabinet(gateway)


async def get(cabinet: Cabinet, path: str, method: str = "GET", **headers: str) -> Answer:
    given = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return await cabinet.ask(method, path, b"", *given)


async def test_the_whole(cabinet: Cabinet, path: str) -> None:
    answer = await get(cabinet, path, accept="application/binary")
    assert (answer.status, answer.body) == (200, CONTENT)
    headers = answer.headers
    assert headers["content-type"] == "application/octet-stream"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-length"] == "100"
    assert headers["accept-ranges"] == "bytes"
    assert headers["cache-control"] == "private, no-cache"
    assert headers["etag"].startswith('"')
    assert headers["x-request-id"].startswith("req_")
    assert headers["content-disposition"] == (
        "attachment; filename=\"na_ve _x_.txt\"; filename*=UTF-8''na%C3%AFve%20%22x%22.txt"
    )


async def test_a_head_is_the_same_without_bytes(cabinet: Cabinet, path: str) -> None:
    whole, head = await get(cabinet, path), await get(cabinet, path, "HEAD")
    assert (head.status, head.body) == (200, b"")
    different = {"x-request-id"}
    assert {k: v for k, v in head.headers.items() if k not in different} == {
        k: v for k, v in whole.headers.items() if k not in different
    }


@pytest.mark.parametrize(
    ("wanted", "start", "end"),
    [("bytes=0-0", 0, 0), ("bytes=10-19", 10, 19), ("bytes=90-", 90, 99), ("bytes=-5", 95, 99)],
)
async def test_a_range(cabinet: Cabinet, path: str, wanted: str, start: int, end: int) -> None:
    answer = await get(cabinet, path, range=wanted)
    assert (answer.status, answer.body) == (206, CONTENT[start : end + 1])
    assert answer.headers["content-range"] == f"bytes {start}-{end}/100"
    assert answer.headers["content-length"] == str(end - start + 1)


@pytest.mark.parametrize("wanted", ["bytes=0-1,5-6", "lines=1-2", "bytes=5-1", "bytes=x"])
async def test_ranges_that_are_passed_over(cabinet: Cabinet, path: str, wanted: str) -> None:
    answer = await get(cabinet, path, range=wanted)
    assert (answer.status, answer.body) == (200, CONTENT)


@pytest.mark.parametrize("wanted", ["bytes=100-", "bytes=500-600", "bytes=-0"])
async def test_beyond_the_end(cabinet: Cabinet, path: str, wanted: str) -> None:
    answer = await get(cabinet, path, range=wanted)
    error = answer.json["error"]
    assert (answer.status, error["code"]) == (416, "range_not_satisfiable")
    assert error["type"] == "invalid_request_error"
    assert answer.headers["content-range"] == "bytes */100"


async def test_unchanged(cabinet: Cabinet, path: str) -> None:
    tag = (await get(cabinet, path)).headers["etag"]
    for condition in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        answer = await get(cabinet, path, if_none_match=condition)
        assert (answer.status, answer.body, answer.headers["etag"]) == (304, b"", tag)
    assert (await get(cabinet, path, if_none_match='"other"')).status == 200


async def test_a_range_of_another_version_is_the_whole(cabinet: Cabinet, path: str) -> None:
    tag = (await get(cabinet, path)).headers["etag"]
    assert (await get(cabinet, path, range="bytes=0-0", if_range=tag)).status == 206
    assert (await get(cabinet, path, range="bytes=0-0", if_range='"other"')).status == 200


@pytest.mark.parametrize("gateway", [BOUNDS], indirect=True)
async def test_downloads_of_a_file_are_bounded(
    gateway: Gateway, cabinet: Cabinet, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = BOUNDS["max_downloads_per_link"]
    reached, going_on, begun = asyncio.Event(), asyncio.Event(), 0
    original = gateway.store.stream

    async def stream(*arguments: Any, **options: Any) -> AsyncIterator[bytes]:
        nonlocal begun
        begun += 1
        if begun == most:
            reached.set()
        await going_on.wait()
        async for chunk in original(*arguments, **options):
            yield chunk

    monkeypatch.setattr(gateway.store, "stream", stream)
    under_way = [asyncio.create_task(get(cabinet, path)) for _ in range(most)]
    await asyncio.wait_for(reached.wait(), 30)
    refused = await get(cabinet, path)
    assert (refused.status, refused.headers["retry-after"]) == (503, "5")
    assert (await get(cabinet, path, "HEAD")).status == 200
    going_on.set()
    assert {(await one).status for one in under_way} == {200}
    assert (await get(cabinet, path)).body == CONTENT


async def test_what_went_out_is_counted(gateway: Gateway, cabinet: Cabinet, path: str) -> None:
    await get(cabinet, path)
    await get(cabinet, path, range="bytes=0-9")
    shown = (await call(gateway.health, "GET", "/metrics")).body.decode()
    assert 'gateway_content_bytes_total{direction="in",surface="files"} 100.0' in shown
    assert 'gateway_content_bytes_total{direction="out",surface="files"} 110.0' in shown
