"""From the API to the operator replica that works the task, over its inner port."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from aiohttp import ClientSession, web

from gateway_core.callbacks import orders
from gateway_core.callbacks.orders import Order, OrderLink, OrderRefused, OrderSigner
from gateway_core.providers.notices import Notice, NoticeSigner, NoticeUndelivered, OperatorLink
from gateway_operator.context import Shards
from gateway_operator.health import start_health
from gateway_operator.metrics import Metrics
from tests.servers.framing import converse
from tests.servers.framing_cases import CASES

SIGNER = NoticeSigner(b"k" * 32)
ORDERS = OrderSigner(b"k" * 32)
NOTICE = Notice("task-abc", "5f0c1d9e-1111-4222-8333-444455556666")


class Inner:
    """An operator's inner port, and the notices it took."""

    def __init__(self) -> None:
        self.taken: list[Notice] = []
        self.orders: list[Order] = []
        self.answering = asyncio.Event()
        self.answering.set()
        self.begun: asyncio.Queue[str] = asyncio.Queue()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])

    async def take_order(self, body: bytes, signature: str) -> dict[str, object] | None:
        order = ORDERS.read(body, signature)
        if order is None:
            return None
        if order.action == "rotate":
            raise OrderRefused(409, "not now")
        self.orders.append(order)
        self.begun.put_nowait(order.account)
        await self.answering.wait()
        return {"delivered": True}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@pytest.fixture
async def inner() -> AsyncIterator[Inner]:
    made = Inner()
    runner = await start_health(
        "127.0.0.1",
        made.port,
        ready=lambda: None,
        metrics=Metrics(),
        signer=SIGNER,
        take_notice=made.taken.append,
        take_order=made.take_order,
    )
    yield made
    await runner.cleanup()


@pytest.mark.parametrize("replicas", [1, 2, 3, 7, 16])
def test_owner_is_replica_of_the_shard(replicas: int) -> None:
    link = OperatorLink("http://op-{ordinal}.op.ns.svc:8082/", replicas, SIGNER)
    for number in range(200):
        name = f"task-{number}"
        owners = [n for n in range(replicas) if Shards.divide(replicas, n).owns_name(name)]
        assert link.find_owner(name) == f"http://op-{owners[0]}.op.ns.svc:8082"


async def test_notice_is_delivered(inner: Inner) -> None:
    async with OperatorLink(inner.url, 1, SIGNER) as link:
        await link.deliver(NOTICE)
        await link.deliver(NOTICE)
    assert inner.taken == [NOTICE, NOTICE]


async def test_forged_notice_is_refused_on_inner_port(inner: Inner) -> None:
    async with OperatorLink(inner.url, 1, NoticeSigner(b"x" * 32)) as link:
        with pytest.raises(NoticeUndelivered, match="404"):
            await link.deliver(NOTICE)
    async with ClientSession() as session:
        async with session.post(inner.url + "/notices/task-abc") as answer:
            assert answer.status == 404
        async with session.get(inner.url + SIGNER.sign(NOTICE)) as answer:
            assert answer.status == 405
    assert inner.taken == []


async def test_error_of_unavailable_operator_hides_the_address() -> None:
    inner = Inner()
    async with OperatorLink(inner.url, 1, SIGNER) as link:
        with pytest.raises(NoticeUndelivered) as caught:
            await link.deliver(NOTICE)
    assert SIGNER.sign(NOTICE) not in str(caught.value)


async def test_redirect_is_not_followed(inner: Inner) -> None:
    async def lead_on(_: web.Request) -> web.Response:
        return web.Response(status=307, headers={"Location": inner.url + SIGNER.sign(NOTICE)})

    app = web.Application()
    app.router.add_post("/{rest:.*}", lead_on)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with OperatorLink(url, 1, SIGNER) as link:
            with pytest.raises(NoticeUndelivered, match="307"):
                await link.deliver(NOTICE)
    finally:
        await runner.cleanup()
    assert inner.taken == []


async def test_order_is_carried_out_or_refused_with_the_reason(inner: Inner) -> None:
    order = Order("test", "demo", {"url": "https://example.com"})
    async with OrderLink(inner.url, 1, ORDERS, 15) as link:
        assert await link.give(order) == {"delivered": True}
        with pytest.raises(OrderRefused, match="not now") as refusal:
            await link.give(Order("rotate", "demo", {}))
    assert refusal.value.status == 409
    assert inner.orders == [order]


async def test_order_of_a_stranger_is_unknown(inner: Inner) -> None:
    old = OrderSigner(b"k" * 32, lambda: 1_000_000.0)
    early = OrderSigner(b"k" * 32, lambda: time.time() + 60)
    for signer in (OrderSigner(b"x" * 32), old, early):
        async with OrderLink(inner.url, 1, signer, 15) as link:
            with pytest.raises(OrderRefused) as refusal:
                await link.give(Order("test", "demo", {"url": "https://example.com"}))
        assert refusal.value.status == 503
    async with ClientSession() as session:
        for signature in ("", "1.2", "x.y", "\u0661.00"):
            answer = await session.post(
                f"{inner.url}/orders", data=b"{}", headers={"x-gateway-order": signature}
            )
            assert answer.status == 404
    assert inner.orders == []


async def test_outcome_of_an_order_that_fails_in_the_operator_is_unknown(
    inner: Inner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inner.answering, "wait", None)
    async with OrderLink(inner.url, 1, ORDERS, 15) as link:
        with pytest.raises(OrderRefused) as refusal:
            await link.give(Order("test", "demo", {"url": "https://example.com"}))
    assert refusal.value.status == 504


async def test_order_without_an_operator_was_not_carried_out() -> None:
    async with OrderLink("http://127.0.0.1:9", 1, ORDERS, 15) as link:
        with pytest.raises(OrderRefused) as refusal:
            await link.give(Order("test", "demo", {"url": "https://example.com"}))
    assert refusal.value.status == 503


async def test_tests_of_receivers_that_hang_hold_up_no_other_account_and_no_rotation(
    inner: Inner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orders, "WAIT_SECONDS", 0.05)
    inner.answering.clear()

    async def send_test(account: str) -> int:
        try:
            await link.give(Order("test", account, {"url": "https://example.com"}))
        except OrderRefused as refusal:
            return refusal.status
        return 200

    async with OrderLink(inner.url, 1, ORDERS, 15) as link:
        sent = [asyncio.create_task(send_test("busy")) for _ in range(10)]
        ended = asyncio.as_completed(sent)
        assert [await next(ended) for _ in range(8)] == [503] * 8
        with pytest.raises(OrderRefused, match="not now"):
            await link.give(Order("rotate", "busy", {}))
        other = asyncio.create_task(send_test("other"))
        assert [await inner.begun.get() for _ in range(3)] == ["busy", "busy", "other"]
        inner.answering.set()
        assert await asyncio.gather(other, next(ended), next(ended)) == [200] * 3
    assert len(inner.orders) == 3


@pytest.mark.parametrize(("receiver", "least"), [(1, 25), (15, 25), (60, 65)])
def test_order_is_waited_for_longer_than_a_receiver_may_take(receiver: float, least: float) -> None:
    link = OrderLink("http://127.0.0.1:9", 1, ORDERS, receiver)
    assert link.seconds >= least


@pytest.mark.parametrize(
    "name",
    [
        "upgrade h2c, length",
        "upgrade h2c, chunked",
        "upgrade websocket, no body",
        "upgrade with half a request in a body",
        "behind HTTP/1.0",
        "coding in HTTP/1.0",
        "coding 'gzip, chunked'",
    ],
)
async def test_inner_port_reads_nothing_behind_a_request_with_a_doubtful_end(
    inner: Inner, name: str
) -> None:
    [case] = [case for case in CASES if case.name == name]
    assert len(await converse(inner.port, replace(case, closes=True))) == 1
