"""How a process learns the API server's time: from each answer that it gets anyway."""

import aiohttp

from gateway_core.ports.clock import CLOCK


def follow_clock(response: aiohttp.ClientResponse, sent: float) -> None:
    """Has `CLOCK` take the answer into account; `sent` as for `RecordClock.follow`."""
    # other answers may be a proxy's, whose clock dates no object
    if response.status < 300 or response.status in (404, 409):
        CLOCK.follow(response.headers.get("Date"), sent)
