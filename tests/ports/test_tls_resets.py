"""F11: a TLS peer that resets its handshakes harms no other connection of the process (I8).

Each TLS client of the gateway's processes, through its own adapter, in a process of its own.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import pytest

from tests.ports.tls_clients import CLIENTS
from tests.servers.server import ThreadServer
from tests.servers.tls_resets import ResettingPeer
from tests.servers.world import ROOT
from tests.shares import IS_WHOLE

RESETS = 2000 if IS_WHOLE else 500
"""Of each client. Where descriptors are closed twice, 50 are enough to end the process."""
MOST_SECONDS = 90.0


class Echo(ThreadServer):
    """Sends back what it is sent."""

    port = 0

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1000):
                writer.write(data)
        except OSError:
            pass
        finally:
            writer.close()


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ResettingPeer]:
    with ResettingPeer(tmp_path_factory.mktemp("tls")) as running:
        yield running


@pytest.fixture(scope="module")
def echo() -> Iterator[Echo]:
    with Echo() as running:
        yield running


@pytest.mark.full
@pytest.mark.parametrize("client", CLIENTS)
def test_reset_handshakes_harm_no_other_connection(client, peer, echo, tally):
    told = tally("F11", f"TLS handshakes reset, {client}")
    before, deadline = peer.resets, time.monotonic() + MOST_SECONDS
    command = (sys.executable, "-m", "tests.ports.tls_clients")
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [*command, client, str(peer.port), str(echo.port), str(peer.ca)],
            cwd=ROOT,
            env={**os.environ, "SSL_CERT_FILE": str(peer.ca)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        try:
            while peer.resets - before < RESETS and process.poll() is None:
                assert time.monotonic() < deadline, f"{peer.resets - before} resets of {RESETS}"
                time.sleep(0.02)
            output, _ = process.communicate(timeout=30)
        finally:
            process.kill()
            process.wait()
        told.trials += peer.resets - before
        errors.seek(0)
        text = errors.read().decode(errors="replace")[-2000:]
    if process.returncode:
        told.violate(f"the process ended with {process.returncode}: {text}")
    else:
        harmed = json.loads(output)
        if harmed:
            told.violate(f"other connections were harmed: {harmed}")
    told.check()
