"""Pages of lists, whose bytes are bounded for every kind, and the connections of calls.

200 KB each is much for 500 at a time, and 50 are few where each has one: 100,000 files would take
2,000 pages.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway_core.files.quota import read_members
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.connection import Connection
from gateway_core.kube.errors import (
    KubernetesUnavailable,
    ObjectNotFound,
    RequestForbidden,
    Terminating,
    raise_for_status,
)
from gateway_core.kube.transport import FIRST_PAGE, MAX_PAGE_BYTES, PAGE


class Asked(KubernetesClient):
    """Answers lists with nothing; `limits` are those that they had."""

    def __init__(self) -> None:
        super().__init__(Connection("https://nowhere"), "default")
        self.limits: list[int] = []

    async def _exchange(
        self, method: str, url: str, *, query: Mapping[str, str] | None = None, **_: Any
    ) -> bytes:
        assert query is not None
        self.limits.append(int(query["limit"]))
        return b'{"items": [], "metadata": {"resourceVersion": "1"}}'


async def test_kind_of_unknown_size_is_read_in_small_pages() -> None:
    kube = Asked()
    await kube.list_page("gatewaykeys")
    await kube.list_page("gatewaytasks", metadata_only=True)
    await kube.list_page("gatewaytasks", limit=7)
    await kube.list_page("gatewaytasks", limit=PAGE)
    assert kube.limits == [FIRST_PAGE, FIRST_PAGE, 7, FIRST_PAGE]


async def test_stored_objects_of_an_account_are_read_in_small_pages() -> None:
    kube = Asked()
    await read_members(kube, "acme", "files")
    await read_members(kube, "acme", "temporary")
    assert kube.limits == [FIRST_PAGE] * 3


class Filed:
    """Serves files of these many bytes each, in pages; `limits` are those that were asked for.

    `sent` are the bytes of each page, `taken` those of the pages that a client got.
    """

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.limits: list[int] = []
        self.sent: list[int] = []
        self.taken: list[int] = []
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
        with suppress(ConnectionResetError):
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
            async with KubernetesClient(connection, "default") as kube:
                found = await self._list(kube)
                for failed in failures:
                    self.busy = failed
                    found = await self._list(kube)
        return found

    async def _list(self, kube: KubernetesClient) -> list[int]:
        found, token = list[int](), None
        while True:
            page = await kube.list_page("gatewayfiles", token=token)
            sizes = [len(cast("str", item)) for item in page.items]
            self.taken.append(sum(sizes))
            found += sizes
            token = page.next_token
            if token is None:
                return found


async def test_small_ones_are_read_many_at_a_time_once_they_are_known_to_be_small() -> None:
    filed = Filed([1000] * 1200)
    assert await filed.read() == filed.sizes
    assert filed.limits == [FIRST_PAGE, PAGE, PAGE, PAGE]


async def test_page_follows_the_bytes_of_the_one_before() -> None:
    filed = Filed([100_000] * 200)
    assert await filed.read() == filed.sizes
    assert filed.limits == [50, 39, 39, 39, 39]


@pytest.mark.parametrize(("size", "objects"), [(40_000, 400), (200_000, 100), (1_200_000, 20)])
async def test_page_of_any_kind_is_bounded_in_bytes(size: int, objects: int) -> None:
    """Large ones after small ones, up to the largest that etcd takes (I11)."""
    filed = Filed([1000] * 50 + [size] * objects)
    assert await filed.read() == filed.sizes
    assert filed.limits[:2] == [50, 500]
    assert max(filed.taken) <= MAX_PAGE_BYTES
    assert sum(filed.sent) > sum(filed.taken), "the first page of large ones was given up"


async def test_abandoned_page_is_not_read_to_its_end() -> None:
    filed = Filed([1000] * 50 + [200_000] * 300)
    assert await filed.read() == filed.sizes
    assert max(filed.sent) < 300 * 200_000


async def test_objects_that_fit_no_page_together_are_read_one_by_one() -> None:
    filed = Filed([MAX_PAGE_BYTES + 1] * 3)
    assert await filed.read() == filed.sizes
    assert filed.limits == [50, 12, 3, 1, 1, 1]


async def test_page_that_does_not_come_is_asked_for_again_in_a_smaller_size() -> None:
    """It may have been too long to be made in time, and would be so at the next reading too."""
    filed = Filed([1000] * 600)
    assert await filed.read(1) == filed.sizes
    assert filed.limits == [50, 500, 500, 500, 50, 500, 500]


async def test_small_page_that_does_not_come_is_an_error() -> None:
    filed = Filed([1000] * 600)
    with pytest.raises(KubernetesUnavailable):
        await filed.read(2)
    assert filed.limits == [50, 500, 500, 500, 50]


async def test_open_watches_take_no_connection_from_calls() -> None:
    """Each account whose pages are read has a watch of its own (I11)."""
    watched, opened = 6, asyncio.Semaphore(0)
    ended = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return web.json_response({"metadata": {"name": "k1"}})
        response = web.StreamResponse()
        await response.prepare(request)
        opened.release()
        await ended.wait()
        return response

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    async with TestServer(app) as server:
        connection = Connection(str(server.make_url("")).rstrip("/"))
        async with KubernetesClient(connection, "default", pool=2, call_seconds=5) as kube:

            async def follow() -> None:
                async for _ in kube.watch("gatewaytasks", resource_version="1", timeout_seconds=60):
                    pass

            async with asyncio.timeout(5), asyncio.TaskGroup() as watches:
                for _ in range(watched):
                    watches.create_task(follow())
                for _ in range(watched):
                    await opened.acquire()
                found = await asyncio.gather(*(kube.get("gatewaykeys", "k1") for _ in range(4)))
                ended.set()
    assert [obj["metadata"]["name"] for obj in found] == ["k1"] * 4


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (
            403,
            "gatewayusages.modelgateway.dev is forbidden: unable to create new content in namespace"
            " gw because it is being terminated",
        ),
        (405, "create not allowed while custom resource definition is terminating"),
    ],
)
def test_create_in_what_is_being_deleted_is_refused_as_terminating(
    status: int, message: str
) -> None:
    raw = orjson.dumps({"kind": "Status", "reason": "Forbidden", "message": message})
    with pytest.raises(Terminating):
        raise_for_status(status, raw, writes=True)


async def test_webhook_that_speaks_of_termination_proves_none() -> None:
    text = "unable to create new content in namespace gw because it is being terminated"
    message = f'admission webhook "w" denied the request: {text}'
    raw = orjson.dumps({"kind": "Status", "reason": "Forbidden", "message": message})
    with pytest.raises(RequestForbidden):
        raise_for_status(403, raw, writes=True)


NAMESPACE, KINDS = "/api/v1/namespaces/default", "/apis/modelgateway.dev/v1alpha1"
SERVED = {"resources": [{"name": "gatewaytasks", "verbs": ["create", "get"]}]}
OURS = {"groups": [{"name": "apps"}, {"name": "modelgateway.dev"}]}


class Answered(KubernetesClient):
    """Answers GETs of a path with its next document; of another path, and creates, with 404."""

    def __init__(self, **documents: list[Any]) -> None:
        super().__init__(Connection("https://nowhere"), "default")
        self.documents = documents

    async def call(self, method: str, path: str, **_: Any) -> Any:
        found = self.documents.get(path, [])
        if method != "GET" or not found:
            raise ObjectNotFound("404", status=404, message="404 page not found")
        return found.pop(0) if len(found) > 1 else found[0]


async def test_namespace_that_is_not_found_is_not_terminating() -> None:
    with pytest.raises(ObjectNotFound):
        await Answered().is_namespace_terminating()


async def test_namespace_made_again_is_not_terminating_for_a_late_cache() -> None:
    late, now = {"metadata": {"deletionTimestamp": "x"}}, dict[str, Any](metadata={})
    assert not await Answered(**{NAMESPACE: [late, now]}).is_namespace_terminating()
    assert await Answered(**{NAMESPACE: [late]}).is_namespace_terminating()


async def test_kinds_are_gone_only_where_the_server_lists_other_groups() -> None:
    for documents in ({}, {"/apis": [OURS]}):
        with pytest.raises(KubernetesUnavailable):
            await Answered(**documents).list_creatable()
    assert await Answered(**{"/apis": [{"groups": [{"name": "apps"}]}]}).list_creatable() == set()


async def test_create_that_finds_nothing_of_a_served_kind_is_repeated() -> None:
    kube = Answered(**{KINDS: [SERVED]})
    with pytest.raises(KubernetesUnavailable) as raised:
        await kube.create("gatewaytasks", {})
    assert not isinstance(raised.value, Terminating)
    with pytest.raises(Terminating):
        await kube.create("gatewayusages", {})
