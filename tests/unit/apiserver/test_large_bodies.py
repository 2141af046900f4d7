"""Moderations with images in data URLs: what is read, where, and how many at once."""

import asyncio
import threading
from contextlib import AsyncExitStack
from typing import Any

import orjson
import pytest
from starlette.types import Message

from gateway_apiserver.endpoints import Call
from gateway_apiserver.surfaces import large_bodies
from gateway_apiserver.surfaces.large_bodies import LARGE_BYTES, MOST_BYTES, LargeBodies
from gateway_core.admission.live_calls import AccountLimiter
from gateway_core.api.errors import TooLarge, Unavailable
from gateway_core.fair_semaphore import HeldUnits
from gateway_web.context import RequestContext
from tests.fakes.clock import in_virtual_time

PIECE = 64 * 1024


class Sender:
    """A client that sends a body piece by piece, as long as `goes_on` is set."""

    def __init__(self, raw: bytes, *, declared: bool = False) -> None:
        self._pieces = [raw[at : at + PIECE] for at in range(0, len(raw), PIECE)]
        headers = [(b"content-type", b"application/json")]
        if declared:
            headers.append((b"content-length", b"%d" % len(raw)))
        self.sent = 0
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        scope = {"type": "http", "headers": headers}
        self.call = Call(scope, self._receive, self._send, RequestContext("r"))

    async def _receive(self) -> Message:
        await self.goes_on.wait()
        piece = self._pieces[self.sent]
        self.sent += 1
        more = self.sent < len(self._pieces)
        return {"type": "http.request", "body": piece, "more_body": more}

    async def _send(self, message: Message) -> None:
        raise AssertionError(message)


def fill(size: int) -> bytes:
    """A JSON object of that many bytes."""
    return b'{"a":"' + b"x" * (size - 8) + b'"}'


def measure(body: dict[str, Any], _size: int) -> tuple[int, int]:
    """What is in it, and the thread that it is read in."""
    return len(body["a"]), threading.get_ident()


async def read(bodies: LargeBodies, raw: bytes, account: str = "demo") -> tuple[int, int]:
    with HeldUnits() as places:
        return await bodies.read(Sender(raw).call, account, places, measure)


@pytest.mark.parametrize("declared", [False, True])
async def test_eight_mebibytes_are_read_and_no_more(declared: bool) -> None:
    bodies = LargeBodies()
    with HeldUnits() as places:
        whole = Sender(fill(MOST_BYTES), declared=declared)
        assert (await bodies.read(whole.call, "demo", places, measure))[0] == MOST_BYTES - 8
        longer = Sender(fill(MOST_BYTES + 1), declared=declared)
        with pytest.raises(TooLarge):
            await bodies.read(longer.call, "demo", places, measure)
        assert (longer.sent == 0) is declared


async def test_large_ones_are_parsed_beside_the_loop() -> None:
    own = threading.get_ident()
    assert (await read(LargeBodies(), fill(LARGE_BYTES)))[1] == own
    assert (await read(LargeBodies(), fill(LARGE_BYTES + 1)))[1] != own


@pytest.mark.parametrize("item", [b"[],", b'"",'])
async def test_body_of_many_values_is_refused(item: bytes) -> None:
    raw = b'{"a":[' + item * 400_001 + b"1]}"
    with pytest.raises(TooLarge, match="commas"):
        await read(LargeBodies(), raw)


@pytest.mark.parametrize("text", ["1,2,[3],{", r"a \",\\", "\\\\"])
async def test_commas_and_brackets_inside_strings_do_not_count(text: str) -> None:
    content = orjson.dumps({"a": text * 200_000})
    assert (await read(LargeBodies(), content))[0] == len(text) * 200_000


async def test_bodies_take_units_by_their_declared_length_and_an_account_half_of_all() -> None:
    unit = 2 * LARGE_BYTES
    bodies = LargeBodies(8, 0.01, unit_bytes=unit)

    def send(units: int) -> Call:
        return Sender(fill(units * unit - 8), declared=True).call

    with HeldUnits() as first, HeldUnits() as second:
        for units in (3, 1):
            await bodies.read(send(units), "greedy", first, measure)
        with pytest.raises(Unavailable, match="Too many large bodies"):
            await bodies.read(send(1), "greedy", first, measure)
        await bodies.read(send(4), "other", second, measure)
        with pytest.raises(Unavailable, match="Too many large bodies"):
            await bodies.read(send(1), "third", second, measure)
        first.release()
        await bodies.read(send(4), "third", second, measure)


async def test_number_of_large_bodies_is_bounded_by_account_and_in_all() -> None:
    bodies = LargeBodies(most=4, wait_seconds=0.05)
    small, large = fill(100), fill(LARGE_BYTES + 1)
    with HeldUnits() as own, HeldUnits() as others:
        for _ in range(2):
            await bodies.read(Sender(large).call, "greedy", own, measure)
        waiting = Sender(large, declared=True)
        with pytest.raises(Unavailable, match="Too many large bodies"):
            await bodies.read(waiting.call, "greedy", own, measure)
        assert waiting.sent == 0, "nothing of it was read meanwhile"
        await read(bodies, small, "greedy")
        for account in ("other", "third"):
            await bodies.read(Sender(large).call, account, others, measure)
        undeclared = Sender(large)
        with pytest.raises(Unavailable, match="Too many large bodies"):
            await bodies.read(undeclared.call, "fourth", others, measure)
        assert undeclared.sent * PIECE <= LARGE_BYTES + PIECE
        others.release()
        await read(bodies, large, "fourth")
    await asyncio.gather(read(bodies, large, "greedy"), read(bodies, large, "greedy"))


@pytest.mark.parametrize("greedy", [("a",), ("a", "b", "c")])
async def test_accounts_of_a_slow_provider_leave_a_place(greedy: tuple[str, ...]) -> None:
    bodies, large = LargeBodies(wait_seconds=0.01), fill(LARGE_BYTES + 1)
    with HeldUnits() as held:
        refused = 0
        for account in greedy * 8:
            try:
                await bodies.read(Sender(large, declared=True).call, account, held, measure)
            except Unavailable:
                refused += 1
        assert refused, "they never met a limit"
        await read(bodies, large, "new")


@in_virtual_time
async def test_account_has_half_of_the_slots_and_one_at_least() -> None:
    shares = AccountLimiter()
    for places, most in ((8, 4), (3, 1), (1, 1)):
        async with AsyncExitStack() as held:
            for _ in range(most):
                await held.enter_async_context(shares.take("judge", "greedy", places))
            with pytest.raises(Unavailable) as told:
                await held.enter_async_context(shares.take("judge", "greedy", places))
            assert told.value.retry_after > 0
            for other in (("judge", "other"), ("second", "greedy")):
                await held.enter_async_context(shares.take(*other, places))
        async with shares.take("judge", "greedy", places):
            assert len(shares) == 1
    assert len(shares) == 0


async def test_slow_sender_loses_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_bodies, "READ_SECONDS", 0.05)
    bodies = LargeBodies(most=1, wait_seconds=0.05)
    slow = Sender(fill(LARGE_BYTES + 1), declared=True)
    slow.goes_on.clear()
    with HeldUnits() as places, pytest.raises(Unavailable, match="did not come"):
        await bodies.read(slow.call, "demo", places, measure)
    monkeypatch.setattr(large_bodies, "READ_SECONDS", 60.0)
    await read(bodies, fill(LARGE_BYTES + 1), "other")
