"""What an end of kopf means: a signal before the operator is ready, a failure after it."""

import asyncio
from typing import Any

import pytest

from gateway_operator import handlers
from gateway_operator.handlers import kopf, run_feed


async def run(monkeypatch: pytest.MonkeyPatch, *, becomes_ready: bool, stop: asyncio.Event) -> None:
    ready = asyncio.Event()

    async def operate(*, ready_flag: asyncio.Event, **_: Any) -> None:
        if becomes_ready:
            ready_flag.set()
            await ready.wait()
            await asyncio.sleep(0)

    async def mark_ready() -> None:
        ready.set()

    monkeypatch.setattr(handlers.kopf, "operator", operate)
    await run_feed(kopf.OperatorRegistry(), namespace="n", ready=mark_ready, stop=stop)


async def test_return_of_kopf_after_ready_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="ended by itself"):
        await run(monkeypatch, becomes_ready=True, stop=asyncio.Event())


async def test_return_of_kopf_before_ready_is_a_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    await run(monkeypatch, becomes_ready=False, stop=asyncio.Event())


async def test_return_of_kopf_after_stop_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = asyncio.Event()
    stop.set()
    await run(monkeypatch, becomes_ready=True, stop=stop)
