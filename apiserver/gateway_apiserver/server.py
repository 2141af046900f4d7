"""Serves an application with uvicorn until a signal, and drains it then; used by `__main__`."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from gateway_apiserver.departure import Departure
from gateway_apiserver.protocol import Protocol

DRAIN_SECONDS = 15
"""How long requests under way have after SIGTERM: a create may take 10 s to be known."""
IDLE_SECONDS = 75
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class _Server(uvicorn.Server):
    """A server that returns after a signal; uvicorn's own would raise the signal anew.

    After SIGTERM it first lingers; a second signal, like SIGINT, ends that.
    """

    def __init__(self, config: uvicorn.Config, departure: Departure, linger_seconds: float) -> None:
        super().__init__(config)
        self._departure = departure
        self._linger_seconds = linger_seconds

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begins the departure, and ends it after the time to linger."""
        lingers = sig == signal.SIGTERM and not self._departure.begun
        self._departure.begun = True
        if lingers and self._linger_seconds > 0:
            loop = asyncio.get_running_loop()
            loop.call_later(self._linger_seconds, super().handle_exit, sig, frame)
        else:
            super().handle_exit(sig, frame)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            # what has ended is stored after this: SIGTERM that comes again must not cut it short
            loop.remove_signal_handler(signal.SIGINT)


async def serve(
    app: ASGIApp, host: str, port: int, departure: Departure, linger_seconds: float
) -> None:
    """Serves until SIGTERM and so many seconds more, or until SIGINT.

    SystemExit if the address cannot be listened on.
    """
    config = uvicorn.Config(
        departure.wrap(app),
        host=host,
        port=port,
        http=Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )
    await _Server(config, departure, linger_seconds).serve()
