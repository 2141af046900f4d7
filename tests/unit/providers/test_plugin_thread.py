"""The one instant in which both sides of a call believe that it is theirs to decide."""

import asyncio
import threading
import time
from typing import Any

import pytest

from gateway_core.providers import plugin_thread
from gateway_core.providers.plugin_thread import Isolation, NeverBegun


class SlowTicket(plugin_thread._Ticket):
    """Has the thread begin exactly between the giver-up's word and his second look."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "given_up" and value:
            released.set()
            while not self.begun:
                time.sleep(0.001)


released = threading.Event()


async def test_a_call_that_was_given_up_as_it_began_has_no_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plugin_thread, "_Ticket", SlowTicket)
    made = []

    async def find() -> str:
        made.append("call")
        return "job-1"

    async def block() -> None:
        released.wait(10)

    elsewhere = Isolation("adapter", 0.05)
    try:
        elsewhere.spawn(block)
        with pytest.raises(NeverBegun):
            await asyncio.wait_for(elsewhere.run(find, 5.0), 10)
        assert made == []
    finally:
        released.set()
        await elsewhere.stop()
