"""I11: what anybody may read without a key costs a process little, however slowly it is read."""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
from starlette.types import Message

from gateway_apiserver.surfaces import pricing
from gateway_apiserver.surfaces.operations import PublicSender
from gateway_core.providers.price_list import Schedule
from gateway_core.providers.suggestions import SCHEDULES_PATH
from gateway_core.storage.limits import DownloadBounds
from tests.unit.apiserver.gateway import Gateway, call


@pytest.mark.parametrize("path", ["/openapi.json", "/api/v1/price_schedules"])
async def test_slow_reader_without_a_key_holds_one_piece_and_one_slot(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds = DownloadBounds(downloads=1, per_address=1, per_link=1)
    monkeypatch.setattr("gateway_apiserver.app.PUBLIC_BOUNDS", bounds)
    gateway = Gateway()
    for number in range(30):
        gateway.put_model(f"model-{number}")
    took, held = asyncio.Event(), list[int]()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            held.append(len(message["body"]))
            took.set()
            await asyncio.Event().wait()

    async def receive() -> Message:
        if took.is_set():
            await asyncio.Event().wait()
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": b"",
        "headers": [],
        "client": ("192.0.2.1", 1),
    }
    reading = asyncio.create_task(gateway.app(scope, receive, send))
    async with asyncio.timeout(10):
        await took.wait()
    assert max(held) <= 16 * 1024
    answer = await call(gateway.app, "GET", path)
    assert (answer.status, answer.headers["retry-after"].isdigit()) == (503, True)
    reading.cancel()
    with suppress(asyncio.CancelledError):
        await reading
    assert (await call(gateway.app, "GET", path)).status == 200


async def test_entries_of_the_price_list_are_rendered_once_and_shared_by_all_readers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rendered, sent = list[str](), list[list[bytes]]()
    render, send = pricing.render_schedule, PublicSender.send

    def note(entry: Schedule) -> pricing.PriceSchedule:
        rendered.append(entry.model_id)
        return render(entry)

    async def note_body(self: PublicSender, call: Any, body: list[bytes], headers: Any) -> None:
        sent.append(body)
        await send(self, call, body, headers)

    monkeypatch.setattr(pricing, "render_schedule", note)
    monkeypatch.setattr(PublicSender, "send", note_body)
    moment = datetime(2026, 11, 23, 12, 0, 0, tzinfo=UTC)
    monkeypatch.setattr(pricing, "floor_moment", lambda _: moment)
    gateway = Gateway()
    change = {"effectiveTime": "2026-11-23T12:00:02Z", "perCallMicros": 7}
    gateway.put_model("changing", prices=[{"perCallMicros": 5}, change])
    gateway.put_model("other", prices=[{"perCallMicros": 5}])
    bodies = [(await call(gateway.app, "GET", SCHEDULES_PATH)).body for _ in range(3)]
    first = len(rendered)
    assert bodies[0] == bodies[1] == bodies[2]
    assert orjson.dumps(orjson.loads(bodies[0])) == bodies[0]

    moment += timedelta(seconds=1)
    assert (await call(gateway.app, "GET", SCHEDULES_PATH)).body not in bodies
    assert len(rendered) == first
    # all but the head with the time, and punctuation
    assert all(one is other for one, other in zip(sent[0][1:], sent[-1][1:], strict=True))

    moment += timedelta(seconds=1)
    assert (await call(gateway.app, "GET", SCHEDULES_PATH)).body not in bodies
    assert rendered[first:] == ["changing"]
