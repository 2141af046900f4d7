"""I11: slow readers of shared links exhaust neither the media host's memory nor other readers.

The media host runs as a process of its own, on both stores, and its resident memory is held to the
limit that the chart gives its pod.
"""

import asyncio
import base64
import hashlib
import json
import os
import re
import resource
import secrets
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import yaml

from gateway_core.files.addresses import MediaItem, MediaSigner
from gateway_core.storage.directory import DirectoryStore
from tests.faults.machine import Stopwatch
from tests.servers.s3 import S3Server, open_bucket
from tests.servers.server import ServerProcess, find_free_port
from tests.servers.world import wait_for

VALUES = Path(__file__).resolve().parents[3] / "charts/model-gateway/values.yaml"
DEPLOYMENT = VALUES.parent / "templates/media/deployment.yaml"
CONTENT = hashlib.shake_256(b"media").digest(50_000_000)
ITEM = MediaItem("0f0e0d0c-0b0a-4908-8706-050403020100", 0)
SLOW = 500
PIECE = 64 * 1024
DOWNLOAD_BYTES = 256 * 1024


class MediaHost(ServerProcess):
    """The media host on a store; `settings` says which."""

    name = "media"
    start_seconds = 60

    def __init__(self, settings: dict[str, str]) -> None:
        super().__init__()
        self.key = secrets.token_bytes(32)
        self.health_port = find_free_port()
        self._settings = settings
        (self.folder / "media-key").write_text(base64.urlsafe_b64encode(self.key).decode())

    def command(self) -> list[str]:
        return [sys.executable, "-m", "gateway_apiserver", "media"]

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "MALLOC_ARENA_MAX": _read_chart_arenas(),
            "GATEWAY_SECRETS_DIR": str(self.folder),
            "GATEWAY_MEDIA_PORT": str(self.port),
            "GATEWAY_HEALTH_PORT": str(self.health_port),
            "GATEWAY_ACCESS_LOG": "notable",
            **self._settings,
        }

    def answers(self) -> bool:
        url = f"http://127.0.0.1:{self.health_port}/readyz"
        with urllib.request.urlopen(url, timeout=1) as answer:
            return answer.status == 200

    def sign(self) -> str:
        """The path of the link."""
        return MediaSigner(self.key).sign(ITEM, "video/mp4", int(time.time()) + 3600)

    def resident_bytes(self) -> int:
        """Resident memory now."""
        assert self._process is not None
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    def kernel_bytes(self) -> int:
        """What the kernel holds for the sockets that clients reach."""
        state = Path("/proc/net/tcp").read_text().splitlines()[1:]
        local = f":{self.port:04X}"
        queues = [line.split()[4] for line in state if line.split()[1].endswith(local)]
        return sum(int(part, 16) for queue in queues for part in queue.split(":"))


def _read_chart_arenas() -> str:
    """Return the number of the allocator's arenas that the chart gives the pod."""
    found = re.search(r'MALLOC_ARENA_MAX, value: "(\d+)"', DEPLOYMENT.read_text())
    assert found is not None
    return found[1]


@pytest.fixture(params=["directory", "s3"])
def media(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MediaHost]:
    """The media host with one large output in its store."""
    if request.param == "directory":
        store = DirectoryStore(tmp_path)
        asyncio.run(store.put(ITEM.key, CONTENT))
        store.close()
        with MediaHost({"GATEWAY_STORE": "directory", "GATEWAY_STORE_DIR": str(tmp_path)}) as host:
            yield host
        return
    with S3Server() as server, open_bucket(server, prefix="media") as bucket:
        asyncio.run(bucket.put(ITEM.key, CONTENT))
        with MediaHost(server.settings("media")) as host:
            yield host


@asynccontextmanager
async def read_slowly(host: MediaHost, path: str, count: int):
    """So many readers of a link that take the head of the response and nothing more."""
    seen: Counter[bytes] = Counter()
    async with AsyncExitStack() as stack:

        async def begin() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", host.port, limit=PIECE)
            stack.callback(lambda: (reader, writer.transport.abort()))
            writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            seen[head.split()[1]] += 1
            if head.split()[1] == b"503":
                assert b"retry-after: " in head

        for start in range(0, count, 50):
            await asyncio.gather(*(begin() for _ in range(min(50, count - start))))
        yield seen


async def read_slowly_once(host: MediaHost, path: str) -> bytes:
    """The status that one more reader gets."""
    async with read_slowly(host, path, 1) as seen:
        return next(iter(seen))


async def fetch(host: MediaHost, path: str) -> float:
    """Seconds that the whole content takes; its bytes are compared."""
    began = time.monotonic()
    url = f"http://127.0.0.1:{host.port}{path}"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        assert response.status == 200
        assert await response.read() == CONTENT
    return time.monotonic() - began


async def test_slow_readers_neither_fill_the_memory_nor_delay_a_fast_one(media: MediaHost) -> None:
    limit = yaml.safe_load(VALUES.read_text())["media"]["resources"]["limits"]["memory"]
    assert limit == "256Mi"
    path = media.sign()
    alone = min([await fetch(media, path) for _ in range(3)])
    # what threads and connection pools take once is no matter of the number of downloads
    async with read_slowly(media, path, 100):
        pass
    before = media.resident_bytes()
    async with read_slowly(media, path, SLOW) as seen:
        assert seen == {b"200": SLOW}
        with Stopwatch() as timed:
            beside = [await fetch(media, path) for _ in range(3)]
        resident, kernel = media.resident_bytes(), media.kernel_bytes()
        figures = {
            "alone_seconds": round(alone, 3),
            "beside_seconds": round(min(beside), 3),
            "resident_mib": round(resident / 2**20),
            "bytes_per_download": (resident - before) // SLOW,
            "kernel_bytes_per_download": kernel // SLOW,
        }
        print(json.dumps(figures))
        assert resident + kernel < 256 * 2**20
        assert (resident - before + kernel) / SLOW < DOWNLOAD_BYTES
        timed.check("download beside 500 slow ones", 2 * alone + 0.5, min(beside))


async def test_readers_of_a_link_beyond_its_bound_are_refused(media: MediaHost) -> None:
    path = media.sign()
    async with read_slowly(media, path, 600) as seen:
        assert seen == {b"200": 512, b"503": 88}
        assert media.resident_bytes() < 256 * 2**20
        with urllib.request.urlopen(f"http://127.0.0.1:{media.health_port}/metrics") as answer:
            text = answer.read().decode()
        assert "gateway_downloads 512.0" in text
        assert "gateway_downloads_refused_total 88.0" in text

    async def has_place() -> bool:
        return await read_slowly_once(media, path) == b"200"

    await wait_for(has_place, what="a place, once the slow readers have left")
    await fetch(media, path)
