"""The bytes of files: whole, in part, unchanged (contract §3.5)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway_apiserver.content import ByteRange, read_range
from gateway_core.api.errors import RangeNotSatisfiable
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


async def test_whole_content(cabinet: Cabinet, path: str) -> None:
    answer = await get(cabinet, path, accept="application/binary")
    assert (answer.status, answer.body) == (200, CONTENT)
    headers = answer.headers
    assert headers["content-type"] == "application/octet-stream"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-security-policy"] == "sandbox"
    assert headers["content-length"] == "100"
    assert headers["accept-ranges"] == "bytes"
    assert headers["cache-control"] == "private, no-cache"
    assert headers["etag"].startswith('"')
    assert headers["x-request-id"].startswith("req_")
    assert headers["content-disposition"] == (
        "attachment; filename=\"na_ve _x_.txt\"; filename*=UTF-8''na%C3%AFve%20%22x%22.txt"
    )


async def test_head_has_same_headers_without_bytes(cabinet: Cabinet, path: str) -> None:
    whole, head = await get(cabinet, path), await get(cabinet, path, "HEAD")
    assert (head.status, head.body) == (200, b"")
    different = {"x-request-id"}
    assert {k: v for k, v in head.headers.items() if k not in different} == {
        k: v for k, v in whole.headers.items() if k not in different
    }


@pytest.mark.parametrize(
    ("header", "start", "end"),
    [("Bytes=10-19", 10, 19), ("bytes=90-", 90, 99), ("bytes=-5", 95, 99), ("bytes=0-999", 0, 99)],
)
def test_single_range_is_read(header: str, start: int, end: int) -> None:
    assert read_range(header, 100) == ByteRange(start, end)


@pytest.mark.parametrize(
    "header", ["", "bytes=0-1,5-6", "lines=1-2", "bytes=5-1", "bytes=-", "bytes=x"]
)
def test_malformed_ranges_are_ignored(header: str) -> None:
    assert read_range(header, 100) is None
    assert read_range("", 0) is None


@pytest.mark.parametrize(
    ("header", "size"),
    [("bytes=100-", 100), ("bytes=500-600", 100), ("bytes=-0", 100), ("bytes=0-", 0)],
)
def test_range_beyond_the_end_is_refused(header: str, size: int) -> None:
    with pytest.raises(RangeNotSatisfiable):
        read_range(header, size)


async def test_range_of_a_file(cabinet: Cabinet, path: str) -> None:
    answer = await get(cabinet, path, range="bytes=10-19")
    assert (answer.status, answer.body) == (206, CONTENT[10:20])
    assert answer.headers["content-range"] == "bytes 10-19/100"
    assert answer.headers["content-length"] == "10"
    answer = await get(cabinet, path, range="bytes=100-")
    error = answer.json["error"]
    assert (answer.status, error["code"]) == (416, "range_not_satisfiable")
    assert error["type"] == "invalid_request_error"
    assert answer.headers["content-range"] == "bytes */100"


async def test_conditions_on_the_version(cabinet: Cabinet, path: str) -> None:
    tag = (await get(cabinet, path)).headers["etag"]
    for condition in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        answer = await get(cabinet, path, if_none_match=condition)
        assert (answer.status, answer.body, answer.headers["etag"]) == (304, b"", tag)
    assert (await get(cabinet, path, if_none_match='"other"')).status == 200
    for tag_or_other, status in ((tag, 206), ('"other"', 200)):
        answer = await get(cabinet, path, range="bytes=0-0", if_range=tag_or_other)
        assert answer.status == status


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


async def test_metric_counts_sent_bytes(gateway: Gateway, cabinet: Cabinet, path: str) -> None:
    await get(cabinet, path)
    await get(cabinet, path, range="bytes=0-9")
    shown = (await call(gateway.health, "GET", "/metrics")).body.decode()
    assert 'gateway_content_bytes_total{direction="in",surface="files"} 100.0' in shown
    assert 'gateway_content_bytes_total{direction="out",surface="files"} 110.0' in shown
