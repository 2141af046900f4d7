"""A load of HTTP/1.1 requests over kept connections, cheap enough to share the machine.

A general client costs several times what the server does for a small answer; this one writes
prepared bytes and looks for the status and the length only.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Load:
    """What came of a load: seconds it took, each request's seconds, and answers by status."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds

    def percentile(self, share: float) -> float:
        """Seconds within which `share` of the requests were answered."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class _Connection(asyncio.Protocol):
    """Sends the next request as soon as an answer is complete."""

    def __init__(self, load: Load, next_request: Callable[[], bytes | None]) -> None:
        self._load = load
        self._next = next_request
        self._buffer = b""
        self._sent_at = 0.0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._send()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._buffer[:end].lower()
        at = head.find(b"content-length:")
        length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(self._buffer) < end + 4 + length:
            return
        self._buffer = self._buffer[end + 4 + length :]
        status = int(head[9:12])
        self._load.latencies.append(time.perf_counter() - self._sent_at)
        self._load.statuses[status] = self._load.statuses.get(status, 0) + 1
        self._send()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or ConnectionError("closed by the server"))

    def _send(self) -> None:
        assert self._transport is not None
        request = self._next()
        if request is None:
            self.done.set_result(None)
            self._transport.close()
            return
        self._sent_at = time.perf_counter()
        self._transport.write(request)


async def run_load(
    port: int,
    request: bytes | Callable[[int], bytes],
    *,
    count: int,
    concurrency: int,
) -> Load:
    """Send `request`, or `request(number)`, `count` times over `concurrency` connections."""
    load, left = Load(), iter(range(count))
    make = request if callable(request) else lambda _: request

    def next_request() -> bytes | None:
        number = next(left, None)
        return None if number is None else make(number)

    loop = asyncio.get_running_loop()
    begin = time.perf_counter()
    connections = [
        await loop.create_connection(lambda: _Connection(load, next_request), "127.0.0.1", port)
        for _ in range(min(concurrency, count))
    ]
    await asyncio.gather(*(protocol.done for _, protocol in connections))
    load.seconds = time.perf_counter() - begin
    return load


def build_request(method: str, path: str, headers: dict[str, str], body: bytes = b"") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: bench"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body or method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
