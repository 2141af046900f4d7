"""How many objects one page of a list has: 200 KB each is much for 500 at a time.

And 50 are few where each has one: 100,000 files would take 2,000 pages.
"""

from collections.abc import Mapping
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway_core.adapters.kube.connection import Connection
from gateway_core.adapters.kube.pagesizes import MOST_PAGE_BYTES
from gateway_core.adapters.kube.records import KubeRecords
from gateway_core.ports.records import PAGE, PAGE_OF_LARGE, RecordUnavailable
from gateway_core.usecases.storage import read_members


class Asked(KubeRecords):
    """Answers lists with nothing; `limits` are those that they had."""

    def __init__(self) -> None:
        connection = cast("Any", type("Nowhere", (), {"server": "https://nowhere"}))
        super().__init__(connection, "default")
        self.limits: list[int] = []

    async def _exchange(
        self, method: str, url: str, *, query: Mapping[str, str] | None = None, **_: Any
    ) -> bytes:
        assert query is not None
        self.limits.append(int(query["limit"]))
        return b'{"items": [], "metadata": {"resourceVersion": "1"}}'


@pytest.mark.parametrize(
    ("plural", "limit"),
    [
        ("gatewayfiles", PAGE_OF_LARGE),
        ("gatewayuploads", PAGE_OF_LARGE),
        ("gatewaybatches", PAGE_OF_LARGE),
        ("gatewaytasks", PAGE),
    ],
)
async def test_what_may_be_large_is_read_in_small_pages(plural: str, limit: int) -> None:
    records = Asked()
    await records.list_page(plural)
    await records.list_page(plural, metadata_only=True)
    await records.list_page(plural, limit=7)
    assert records.limits == [limit, PAGE, 7]


async def test_what_an_account_stores_is_read_in_small_pages() -> None:
    records = Asked()
    await read_members(records, "acme", "files")
    await read_members(records, "acme", "temporary")
    assert records.limits == [PAGE_OF_LARGE] * 3


class Filed:
    """Serves files of these many bytes each, in pages; `limits` are those that were asked for."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.limits: list[int] = []
        self.sent: list[int] = []
        self.busy = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """A page, piece by piece."""
        limit, start = int(request.query["limit"]), int(request.query.get("continue", "0"))
        self.limits.append(limit)
        if self.busy:
            self.busy -= 1
            return web.Response(status=500)
        end = min(len(self.sizes), start + limit)
        go_on = str(end) if end < len(self.sizes) else ""
        response = web.StreamResponse()
        await response.prepare(request)
        self.sent.append(0)
        await response.write(
            b'{"metadata": {"resourceVersion": "1", "continue": "%s"}, "items": [' % go_on.encode()
        )
        for index in range(start, end):
            comma = b"," if index + 1 < end else b""
            await response.write(b'"' + b"x" * self.sizes[index] + b'"' + comma)
            self.sent[-1] += self.sizes[index]
        await response.write(b"]}")
        return response

    async def read(self, *failures: int) -> list[int]:
        """The sizes of all, as a client lists them; again after so many failures of each time."""
        app = web.Application()
        app.router.add_get("/{path:.*}", self.answer)
        async with TestServer(app) as server:
            connection = Connection(str(server.make_url("")).rstrip("/"))
            async with KubeRecords(connection, "default") as records:
                found = await self._list(records)
                for failed in failures:
                    self.busy = failed
                    found = await self._list(records)
        return found

    async def _list(self, records: KubeRecords) -> list[int]:
        found, token = list[int](), None
        while True:
            page = await records.list_page("gatewayfiles", token=token)
            found += [len(cast("str", item)) for item in page.items]
            token = page.next_token
            if token is None:
                return found


async def test_small_ones_are_read_many_at_a_time_once_they_are_known_to_be_small() -> None:
    filed = Filed([1000] * 1200)
    assert await filed.read() == filed.sizes
    assert filed.limits == [PAGE_OF_LARGE, PAGE, PAGE, PAGE]


async def test_a_page_follows_the_bytes_of_the_one_before() -> None:
    filed = Filed([100_000] * 200)
    assert await filed.read() == filed.sizes
    assert filed.limits == [50, 99, 99]


async def test_large_ones_after_small_ones_are_not_read_all_at_once() -> None:
    filed = Filed([1000] * 50 + [200_000] * 300)
    assert await filed.read() == filed.sizes
    assert filed.limits == [50, 500, *[50] * 6]
    assert max(filed.sent) < 300 * 200_000, "the rest was not asked for"
    assert max(filed.sent) < MOST_PAGE_BYTES * 2


async def test_a_page_that_does_not_come_is_asked_for_again_in_the_smallest_size() -> None:
    """It may have been too long to be made in time, and would be so at the next reading too."""
    filed = Filed([1000] * 600)
    assert await filed.read(1) == filed.sizes
    assert filed.limits == [50, 500, 500, 500, 50, 500, 500]


async def test_the_smallest_that_does_not_come_is_told() -> None:
    filed = Filed([1000] * 600)
    with pytest.raises(RecordUnavailable):
        await filed.read(2)
    assert filed.limits == [50, 500, 500, 500, 50]
