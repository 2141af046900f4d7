"""Signals to the process that serves."""

import asyncio
import signal

import uvicorn

from gateway_web.context import Drain
from gateway_web.server import _Server
from tests.servers.world import wait_for


async def test_sigterm_that_comes_again_does_not_cut_short_what_follows_the_server() -> None:
    loop = asyncio.get_running_loop()
    drain = Drain()
    server = _Server(uvicorn.Config(None), drain, 0)  # type: ignore[arg-type]
    try:
        with server.capture_signals():
            signal.raise_signal(signal.SIGTERM)
            await wait_for(lambda: server.should_exit, what="the end")
        assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(0)
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
    assert drain.begun


async def test_second_sigterm_ends_the_time_to_linger() -> None:
    server = _Server(uvicorn.Config(None), Drain(), linger_seconds=60)  # type: ignore[arg-type]
    server.handle_exit(signal.SIGTERM, None)
    assert not server.should_exit
    server.handle_exit(signal.SIGTERM, None)
    assert server.should_exit
