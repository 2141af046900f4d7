"""Programs in network namespaces of their own, where every address is the test's.

The module is such a program itself, with a name server that does not answer for names below
`silent.test`. `unshare --net --mount python -m tests.servers.namespaces` fetches many URLs with
such names for one account and, every 0.2 s, one with a good name for another. It prints as JSON:
{"good": seconds of each, "slow": reasons, "swallowed": questions, "threads": most}.
"""

import asyncio
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from ipaddress import ip_network
from typing import Any

import pytest
from aiohttp import web

from gateway_core.egress.addresses import AddressPolicy
from gateway_core.files.fetching import MOST_AT_ONCE, Fetcher, FetchFailed
from tests.servers.control_plane import ROOT

SERVER = "127.0.0.53"
SECONDS = 3.0
GOOD = 20


def run_alone(module: str, *namespaces: str, given: Any = None) -> Any:
    """The JSON that `python -m module` prints in new namespaces; skips where there are none.

    `given` is on its standard input, as JSON.
    """
    program = [sys.executable, "-m", module]
    for alone in (["unshare", *namespaces], ["unshare", *namespaces, "--map-root-user"]):
        done = subprocess.run(
            [*alone, *program],
            cwd=ROOT,
            input=json.dumps(given),
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        if done.returncode == 0:
            return json.loads(done.stdout)
    # root has namespaces: there a failure is one of the program's own
    assert os.geteuid() != 0, done.stderr[-2000:]
    pytest.skip(f"no namespaces to be had: {done.stderr[-200:]}")


class NameServer(asyncio.DatagramProtocol):
    """Answers every question with 127.0.0.1, and none below `silent.test`."""

    def __init__(self) -> None:
        self.swallowed = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, address: Any) -> None:
        if b"\x06silent\x04test" in data:
            self.swallowed += 1
            return
        end = data.index(b"\0", 12) + 5
        is_ipv4 = data[end - 4 : end - 2] == b"\0\1"
        head = data[:2] + struct.pack(">HHHHH", 0x8180, 1, int(is_ipv4), 0, 0)
        found = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 60, 4) + socket.inet_aton("127.0.0.1")
        self.transport.sendto(head + data[12:end] + (found if is_ipv4 else b""), address)


async def main() -> None:
    subprocess.run(("ip", "link", "set", "lo", "up"), check=True)
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as conf:
        conf.write(f"nameserver {SERVER}\noptions timeout:5 attempts:2\n")
        conf.flush()
        subprocess.run(("mount", "--bind", conf.name, "/etc/resolv.conf"), check=True)
        json.dump(await measure(), sys.stdout)


async def measure() -> dict[str, Any]:
    loop, names = asyncio.get_running_loop(), NameServer()
    await loop.create_datagram_endpoint(lambda: names, local_addr=(SERVER, 53))
    app = web.Application()
    app.router.add_get("/", lambda _: _answer())
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    fetcher = Fetcher(AddressPolicy(allowed=(ip_network("127.0.0.0/8"),)), seconds=SECONDS)

    async def fetch_slow(number: int) -> str:
        for _ in range(100):  # until it has had its turn
            try:
                async with fetcher.open(f"http://n{number}.silent.test:{port}/", "evil"):
                    return "fetched"
            except FetchFailed as error:
                return str(error)
            except Exception:
                continue
        return "never"

    slow = [asyncio.create_task(fetch_slow(n)) for n in range(2 * MOST_AT_ONCE)]
    good, threads = [], 0
    for number in range(GOOD):
        await asyncio.sleep(0.2)
        began = loop.time()
        async with fetcher.open(f"http://g{number}.good.test:{port}/", "good") as fetched:
            assert b"".join([chunk async for chunk in fetched.chunks]) == b"well"
        good.append(loop.time() - began)
        threads = max(threads, sum("lookup" in one.name for one in threading.enumerate()))
    reasons = await asyncio.gather(*slow)
    await fetcher.close()
    await runner.cleanup()
    return {"good": good, "slow": reasons, "swallowed": names.swallowed, "threads": threads}


async def _answer() -> web.Response:
    return web.Response(body=b"well")


if __name__ == "__main__":
    asyncio.run(main())
