"""The TCP connection below an ASGI request: closing it, and noticing that the caller left.

ASGI has no word for "close without an answer", so `server` puts a `Wire` into the request's
scope; `faults` uses it.
"""

import asyncio
from typing import Protocol

from starlette.types import Receive, Scope

EXTENSION = "gateway_simulator.wire"


class Wire(Protocol):
    """The part of an asyncio transport that the faults need."""

    def write(self, data: bytes) -> None:
        """Send bytes after what has been sent so far."""

    def close(self) -> None:
        """Send what is buffered, then close the connection."""


def get_wire(scope: Scope) -> Wire | None:
    """Return the connection of a request; None where the server gives none (in-process tests)."""
    wire: Wire | None = scope.get("extensions", {}).get(EXTENSION)
    return wire


async def pause(receive: Receive, seconds: float) -> bool:
    """Wait; return False, at once, when the caller closes the connection meanwhile.

    The request's body must have been read, as anything still to come of it is thrown away.
    """
    try:
        async with asyncio.timeout(seconds):
            await _wait_for_disconnect(receive)
    except TimeoutError:
        return True
    return False


async def hang_up(scope: Scope, receive: Receive) -> None:
    """Close the connection, whatever has been answered so far.

    Raise ConnectionAbortedError where there is no wire: an in-process client sees that instead.
    """
    wire = get_wire(scope)
    if wire is None:
        raise ConnectionAbortedError("the simulated provider dropped the connection")
    wire.close()
    # The server takes a return before it has noticed the closing for an application error.
    await _wait_for_disconnect(receive)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
