"""The event loop that the processes run on, and peers that reset TLS handshakes (decision 32)."""

import asyncio
from pathlib import Path

import pytest

from tests.servers.tls_resets import ResettingPeer
from tests.servers.world import wait_for

CALLS = 400
AT_ONCE = 8


@pytest.mark.parametrize("process", ["api", "media", "operator", "simulator"])
def test_process_runs_on_the_standard_event_loop(world, process):
    mapped = Path(f"/proc/{world.run.pid_of(process)}/maps").read_text()
    assert "uvloop" not in mapped


async def test_api_survives_sources_that_reset_tls_handshakes(world, client, tmp_path):
    before = world.run.pid_of("api")
    with ResettingPeer(tmp_path) as peer:
        body = {"source": {"type": "url", "url": f"https://127.0.0.1:{peer.port}/image.png"}}

        async def fetch(count: int) -> list[int]:
            return [
                (await client.request("POST", "/api/v1/files", body=body)).status
                for _ in range(count)
            ]

        statuses = await asyncio.gather(*(fetch(CALLS // AT_ONCE) for _ in range(AT_ONCE)))
        # the peer counts a reset after its client has met it
        await wait_for(lambda: peer.resets >= CALLS, what="all resets")
    assert {status for part in statuses for status in part} == {400}
    assert world.run.pid_of("api") == before
    assert (await client.request("GET", "/api/v1/me")).status == 200
