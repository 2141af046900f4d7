"""What a world's processes share of stored bytes, at hand: record, object store, storage ledger.

Used by tests that make files and uploads as the API does, at the moments that they choose.
"""

import secrets
import time
from contextlib import AsyncExitStack
from typing import Any, Self

from gateway_core.api.file import GatewayFile
from gateway_core.api.ids import (
    ACCOUNT_LABEL,
    FILE_PREFIX,
    PART_PREFIX,
    SHARD_LABEL,
    STORED_FINALIZER,
    UPLOAD_PREFIX,
    IdMint,
    id_to_name,
    shard_of,
)
from gateway_core.api.resource import (
    FILES_FOLDER,
    UPLOADS_FOLDER,
    Object,
    file_key,
    part_key,
    skeleton,
)
from gateway_core.api.upload import GatewayUpload
from gateway_core.files.files import NewFile, build_file
from gateway_core.files.quota import rebuild_pool
from gateway_core.files.quota_counters import StorageLedger
from gateway_core.files.uploads import write_time
from gateway_core.kube.lists import list_all
from gateway_core.kube.secrets import load_key
from gateway_core.redis.link import CountersStale
from gateway_core.storage.directory import DirectoryStore
from gateway_core.storage.objects import ObjectStore
from tests.servers.world import World

LIMIT = 5_368_709_120


class Stored:
    """Files and uploads of one account; an asynchronous context manager.

    `store` is the world's where that is no directory.
    """

    def __init__(
        self, world: World, account: str = "demo", store: ObjectStore | None = None
    ) -> None:
        self.world = world
        self.account = account
        self._given = store
        self.mint = IdMint(load_key(world.config.secrets_directory, "id-key"))
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        config = self.world.config
        self.kube = await self._stack.enter_async_context(self.world.kube())
        if self._given is None:
            directory = DirectoryStore(config.store_directory)
            self._stack.callback(directory.close)
        self.store = self._given or directory
        url = f"redis://127.0.0.1:{config.ports.redis}/0"
        self.ledger = StorageLedger(url, namespace=config.namespace)
        self._stack.push_async_callback(self.ledger.close)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def claim(self, name: str, size: int) -> None:
        """Count bytes for a member."""
        await self._rebuild_if_stale()
        assert await self.ledger.claim(self.account, "files", name, size, LIMIT)

    async def read_used(self) -> int:
        await self._rebuild_if_stale()
        return (await self.ledger.read_used(self.account, "files")).bytes

    async def _rebuild_if_stale(self) -> None:
        """Make the ledger from the record, as the API does before a claim."""
        try:
            await self.ledger.read_used(self.account, "files")
        except CountersStale:
            await rebuild_pool(self.kube, self.ledger, self.account, "files")

    async def list_all(self, plural: str) -> list[Object]:
        selector = f"spec.request.accountName={self.account}"
        objects, _ = await list_all(self.kube, plural, field_selector=selector)
        return objects

    async def list_keys(self) -> list[str]:
        """Keys of all bytes of files and uploads of the account."""
        return [
            entry.key
            for folder in (FILES_FOLDER, UPLOADS_FOLDER)
            async for entry in self.store.list_entries(f"{folder}{self.account}/")
        ]

    async def add_file(self, data: bytes) -> str:
        """A File as the API makes it; its name."""
        name = self.mint.mint_ordered(FILE_PREFIX, self.account, int(time.time() * 1000))
        kept = await self.store.put(file_key(self.account, name), data)
        await self.claim(name, len(data))
        new = NewFile(
            name=name,
            account=self.account,
            purpose="user_data",
            filename="a.bin",
            segments=(kept.refer(),),
        )
        await self.kube.create(GatewayFile.plural, build_file(new, time.time()))
        return name

    async def add_upload(self, *parts: bytes) -> tuple[str, list[dict[str, Any]]]:
        """A pending Upload with its parts in the store: its name, and the parts as listed."""
        name = id_to_name(self.mint.mint_random(UPLOAD_PREFIX, self.account))
        size = sum(map(len, parts))
        await self.claim(name, size)
        head = skeleton(
            GatewayUpload,
            name,
            labels={ACCOUNT_LABEL: self.account, SHARD_LABEL: str(shard_of(name))},
            finalizers=[STORED_FINALIZER],
        )
        request = {
            "accountName": self.account,
            "purpose": "user_data",
            "filename": "a.bin",
            "mediaType": "application/octet-stream",
            "bytes": size,
        }
        await self.kube.create(GatewayUpload.plural, {**head, "spec": {"request": request}})
        listed = []
        for data in parts:
            part = self.mint.mint_random(PART_PREFIX, self.account)
            kept = await self.store.put(part_key(self.account, name, part), data)
            listed.append(
                {"id": part, "bytes": kept.bytes, "sha256": kept.sha256, "xxh3": kept.xxh3}
            )
        # one that a client has sent twice
        again = self.mint.mint_random(PART_PREFIX, self.account)
        await self.store.put(part_key(self.account, name, again), b"repeated")
        return name, listed

    async def complete(self, upload: str, parts: list[dict[str, Any]]) -> str:
        """The compare-and-set that wins; the File's name."""
        name = self.mint.mint_ordered(FILE_PREFIX, self.account, int(time.time() * 1000))
        completion = {"fileName": name, "parts": parts, "time": write_time(time.time())}
        await self.change(upload, {"outcome": "Completed", "completion": completion})
        return name

    async def change(self, upload: str, spec: dict[str, Any]) -> None:
        obj = await self.kube.get(GatewayUpload.plural, upload)
        await self.kube.patch(GatewayUpload.plural, obj, {"spec": spec})

    async def add_orphan(self) -> str:
        """Bytes as a create leaves them that was killed before its object; their key."""
        key = file_key(self.account, "file-" + secrets.token_hex(13))
        await self.store.put(key, b"nobody's")
        return key
