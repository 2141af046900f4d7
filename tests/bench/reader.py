"""A client that only takes bytes in, in a process of its own, as a real one is on another machine.

What a client in the benchmark's own event loop costs is otherwise most of what a download takes.
"""

import http.client
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from urllib.parse import urlsplit

BUFFER = 256 * 1024


@contextmanager
def start_reader() -> Iterator[ProcessPoolExecutor]:
    """The process; give it `fetch`."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pool.submit(int).result()
        yield pool


def fetch(base_url: str, path: str, headers: dict[str, str], size: int) -> float:
    """Seconds that a GET took to its last byte; AssertionError unless it had `size` bytes."""
    buffer, got = bytearray(BUFFER), 0
    connection = http.client.HTTPConnection(urlsplit(base_url).netloc, timeout=60)
    connection.connect()
    try:
        begin = time.perf_counter()
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        assert answer.status == 200, answer.status
        while count := answer.readinto(buffer):
            got += count
        seconds = time.perf_counter() - begin
    finally:
        connection.close()
    assert got == size, got
    return seconds
