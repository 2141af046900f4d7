"""`python -m tests.ports.streaming_memory MIB`: how much a process grows by streaming that much.

The store is what the environment says, as for the gateway's processes. Prints one JSON object: the
peak of resident memory, in MiB, above that after small objects went both ways.
"""

import asyncio
import hashlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from gateway_core.storage.choice import open_store
from gateway_core.storage.objects import ObjectStore, StoreSettings

MIB = 1024 * 1024


def read_peak() -> float:
    # not `getrusage`, which begins with the peak of whoever started this process
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


async def flow(size: int) -> AsyncIterator[bytes]:
    """That many bytes, none like the others, in chunks of 64 KiB."""
    for start in range(0, size, 65536):
        yield start.to_bytes(8, "big") * 8192


async def send_and_receive(store: ObjectStore, key: str, size: int) -> None:
    stored = await store.put_stream(key, flow(size), max_bytes=size)
    digest, received = hashlib.sha256(), 0
    async for chunk in store.stream(key):
        digest.update(chunk)
        received += len(chunk)
    assert (received, digest.hexdigest()) == (size, stored.sha256)
    await store.delete(key)


async def main(size: int) -> None:
    async with open_store(StoreSettings()) as store:
        await send_and_receive(store, "memory/small", MIB)
        before = read_peak()
        await send_and_receive(store, "memory/large", size)
        one = read_peak()
        await asyncio.gather(*(send_and_receive(store, f"memory/{n}", size // 4) for n in range(4)))
        print(json.dumps({"one": one - before, "four": read_peak() - before}))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) * MIB))
