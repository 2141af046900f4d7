"""The MD5 of an Upload's parts together, which its completion may say (contract §4.4); for `parts`.

Whoever asks may ask for gigabytes, and again. So they are read for few at a time, digested off the
event loop, and what came of it is kept: parts never change. An account may have all places until
another comes.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from weakref import WeakValueDictionary

from gateway_core.concurrency import CommonPlaces, NoPlace
from gateway_core.contract.stored import part_key
from gateway_core.ports.objects import ObjectStore, StoreUnavailable

MOST_AT_ONCE = 2
WAIT_SECONDS = 120.0
"""How long one waits for a place, and for the same that was asked before it."""
MOST_KEPT = 1000


class PartDigests:
    """Reads parts through, for one process."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._places = CommonPlaces(MOST_AT_ONCE)
        self._turns = WeakValueDictionary[tuple[str, str, bytes], asyncio.Lock]()
        self._kept = OrderedDict[tuple[str, str, bytes], bytes]()

    async def find_md5(self, account: str, upload: str, part_ids: Sequence[str]) -> bytes:
        """The MD5 of the parts in this order. ObjectMissing, StoreUnavailable."""
        place = account, upload, hashlib.sha256("\n".join(part_ids).encode()).digest()
        async with _hold(self._turns.setdefault(place, asyncio.Lock())):
            known = self._kept.get(place)
            if known is not None:
                for part_id in part_ids[:1]:
                    # they go together, and may have by now
                    await self._store.head(part_key(account, upload, part_id))
                return known
            keys = [part_key(account, upload, part_id) for part_id in part_ids]
            try:
                async with self._places.take(account, WAIT_SECONDS):
                    found = await self._read(keys)
            except NoPlace:
                raise _too_many() from None
            self._kept[place] = found
            if len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
            return found

    async def _read(self, keys: Iterable[str]) -> bytes:
        digest = hashlib.md5(usedforsecurity=False)
        for key in keys:
            async with aclosing(self._store.stream(key, examine=digest.update)) as chunks:
                async for _ in chunks:
                    pass
        return digest.digest()


@asynccontextmanager
async def _hold(lock: asyncio.Lock) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            await lock.acquire()
    except TimeoutError:
        raise _too_many() from None
    try:
        yield
    finally:
        lock.release()


def _too_many() -> StoreUnavailable:
    return StoreUnavailable("too many Uploads are being read through")
