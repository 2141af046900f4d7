"""The controllers of files and uploads on fakes, in virtual time; they can be killed and restarted.

The record, the object store and the storage ledger outlive them, as they do in earnest.
"""

import asyncio
import hashlib
from datetime import timedelta
from typing import Any, Self

from gateway_core.api.account import GatewayAccount
from gateway_core.api.batch import GatewayBatch
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
from gateway_core.api.resource import Object, file_key, part_key, receipt_key
from gateway_core.api.times import format_time
from gateway_core.api.upload import GatewayUpload
from gateway_core.files.files import FileRecorder
from gateway_core.kube.client import WatchEvent
from gateway_core.tasks.lifecycle import OPEN_SELECTOR
from gateway_operator.context import Context, Shards
from gateway_operator.files.audit import OrphanRemoval, QuotaCheck
from gateway_operator.files.controller import FileController, Removal
from gateway_operator.files.intake import Intake
from gateway_operator.files.storage import FileStorage
from gateway_operator.metrics import Metrics
from gateway_operator.uploads.controller import Settlement, UploadController
from tests.fakes.informer import FakeInformer
from tests.fakes.kubernetes import copy_object, has_fields
from tests.fakes.objects import FakeObjects
from tests.fakes.storage import FakeStorage
from tests.unit.operator.declarations import Declarations
from tests.unit.operator.environment import Killable, RemoteRecords, read_now
from tests.unit.operator.harness import stop

FILES, UPLOADS, BATCHES = GatewayFile.plural, GatewayUpload.plural, GatewayBatch.plural
LIMIT = 5_368_709_120
DAY = 86_400.0


class Ledger(FakeStorage):
    """A ledger on virtual time, which passes on its own."""

    @property
    def now(self) -> float:  # type: ignore[override]
        return read_now().timestamp()

    @now.setter
    def now(self, _: float) -> None:
        """The loop's time is the only one."""


class Controllers:
    """The controllers of files and uploads of one process."""

    def __init__(self, sim: "Simulation") -> None:
        self.storage = FileStorage(sim.context, sim.ledger)
        self.intake = Intake(self.storage, sim.accounts)
        settlement = Settlement(self.storage, FileRecorder(sim.kube, sim.ledger))
        removal = Removal(self.storage, settlement, sim.accounts)
        self.files = FileController(self.storage, self.intake, removal)
        self.uploads = UploadController(self.storage, settlement)

    async def run(self) -> None:
        await asyncio.gather(self.files.queue.run(), self.uploads.queue.run())


class Simulation(Killable, Declarations):
    """Everything around the controllers."""

    def __init__(self) -> None:
        super().__init__()
        # of its own: ids are ordered, and virtual time begins anew with each test
        self.mint = IdMint(b"i" * 32)
        self.kube = RemoteRecords(clock=lambda: format_time(read_now()))
        self.store = FakeObjects()
        self.store.now = read_now
        self.ledger = Ledger()
        self.accounts = FakeInformer(self.kube, "gatewayaccounts", GatewayAccount.model_validate)
        self.metrics = Metrics()
        self.controllers: Controllers | None = None
        self._running: asyncio.Task[None] | None = None
        self._shown: dict[str, dict[str, Object]] = {}
        self.put_account("demo")
        for kind in (FILES, UPLOADS):
            self.kube.listen(kind, lambda change, kind=kind: self._follow(kind, change))  # type: ignore[misc]

    @classmethod
    async def start(cls) -> Self:
        sim = cls()
        await sim.boot()
        return sim

    @property
    def context(self) -> Context:
        return Context(
            kube=self.kube,
            store=self.store,
            shards=Shards(),
            mint=self.mint,
            failpoints=self.failpoints,
            metrics=self.metrics,
            now=read_now,
            post=self.kube.post_event,
        )

    async def boot(self) -> Controllers:
        """Starts the controllers, the ledger being known."""
        for account in ("demo", "other"):
            for pool in ("files", "temporary"):
                await self.ledger.mark_stale(account, pool)  # type: ignore[arg-type]
                token = await self.ledger.begin_rebuild(account, pool)  # type: ignore[arg-type]
                assert token is not None
                await self.ledger.finish_rebuild(account, pool, token, {})  # type: ignore[arg-type]
        return await self.resume()

    async def resume(self) -> Controllers:
        controllers = self.controllers = Controllers(self)
        self._running = asyncio.create_task(controllers.run())
        self._shown = {FILES: {}, UPLOADS: {}}
        for plural, shown in self._shown.items():
            for obj in self.kube.list_objects(plural):
                if self._selects(plural, obj):
                    shown[obj["metadata"]["name"]] = copy_object(obj)
                    self._observe(plural, None, copy_object(obj))
        return controllers

    def halt(self) -> None:
        if self.controllers is not None:
            for queue in (self.controllers.files.queue, self.controllers.uploads.queue):
                stop(queue)

    async def restart(self) -> Controllers:
        await self.kill()
        self.failpoints.is_dead = False
        return await self.resume()

    async def kill(self) -> None:
        self.deafen()
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        self.controllers = self._running = None

    def deafen(self) -> None:
        """Shows the controllers no further events."""
        self._shown = {}

    def _follow(self, plural: str, change: WatchEvent) -> None:
        shown = self._shown.get(plural)
        if shown is None:
            return
        obj, name = copy_object(change.object), change.object["metadata"]["name"]
        if change.type != "DELETED" and self._selects(plural, obj):
            shown[name] = copy_object(obj)
            self._observe(plural, "MODIFIED", obj)
        elif shown.pop(name, None) is not None:
            self._observe(plural, "DELETED", obj)

    def _selects(self, plural: str, obj: Object) -> bool:
        return plural == FILES or has_fields(obj, OPEN_SELECTOR)

    def _observe(self, plural: str, kind: str | None, obj: Object) -> None:
        assert self.controllers is not None
        parts = self.controllers
        controller = parts.files if plural == FILES else parts.uploads
        controller.observe(kind, obj)

    def name_file(self, account: str = "demo") -> str:
        moment = int(read_now().timestamp() * 1000)
        return self.mint.mint_ordered(FILE_PREFIX, account, moment)

    async def add_file(
        self,
        data: bytes = b"some bytes",
        *,
        account: str = "demo",
        name: str | None = None,
        claimed: bool = True,
        **request: Any,
    ) -> str:
        name = name or self.name_file(account)
        pool = "temporary" if request.get("purpose") == "temporary" else "files"
        await self.store.put(file_key(account, name), data)
        if claimed:
            assert await self.ledger.claim(account, pool, name, len(data), LIMIT)  # type: ignore[arg-type]
        await self.kube.create(FILES, self.build_file(name, data, account=account, **request))
        return name

    def build_file(
        self, name: str, data: bytes, *, account: str = "demo", **request: Any
    ) -> dict[str, Any]:
        segment = {
            "key": file_key(account, name),
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        base = {
            "accountName": account,
            "purpose": "user_data",
            "filename": "a.txt",
            "bytes": len(data),
            "segments": [segment],
        }
        return {
            "metadata": {
                "name": name,
                "labels": {ACCOUNT_LABEL: account, SHARD_LABEL: str(shard_of(name))},
                "finalizers": [STORED_FINALIZER],
            },
            "spec": {"request": {**base, **request}},
        }

    async def add_upload(
        self,
        *parts: bytes,
        account: str = "demo",
        name: str | None = None,
        purpose: str = "user_data",
        outcome: str = "Pending",
        **spec: Any,
    ) -> str:
        """An Upload as the API makes it, with its parts in the store; its name."""
        name = name or id_to_name(self.mint.mint_random(UPLOAD_PREFIX, account))
        size = sum(map(len, parts)) or 1
        assert await self.ledger.claim(account, "files", name, size, LIMIT)
        request = {
            "accountName": account,
            "purpose": purpose,
            "filename": "a.txt",
            "mediaType": "text/plain",
            "bytes": size,
        }
        meta = {
            "name": name,
            "labels": {ACCOUNT_LABEL: account, SHARD_LABEL: str(shard_of(name))},
            "finalizers": [STORED_FINALIZER],
        }
        obj = {"metadata": meta, "spec": {"request": request, "outcome": outcome, **spec}}
        await self.kube.create(UPLOADS, obj)
        for part in parts:
            await self.add_part(name, part, account=account)
        return name

    async def add_part(self, upload: str, data: bytes, *, account: str = "demo") -> str:
        part = self.mint.mint_random(PART_PREFIX, account)
        await self.store.put(part_key(account, upload, part), data)
        await self.store.put(receipt_key(account, upload, part), b"{}")
        return part

    def list_parts(self, upload: str, account: str = "demo") -> list[str]:
        head = f"uploads/{account}/{upload}/"
        keys = [key.removeprefix(head) for key in self.store.contents if key.startswith(head)]
        return sorted(key for key in keys if not key.endswith(".json"))

    async def complete(self, upload: str, *parts: str, account: str = "demo") -> str:
        """The compare-and-set that wins; the File's name."""
        name = self.name_file(account)
        listed = []
        for part in parts:
            data = self.store.contents[part_key(account, upload, part)]
            digest = hashlib.sha256(data).hexdigest()
            listed.append({"id": part, "bytes": len(data), "sha256": digest})
        completion = {"fileName": name, "parts": listed, "time": format_time(read_now())}
        patch = {"spec": {"outcome": "Completed", "completion": completion}}
        await self.change(UPLOADS, upload, patch)
        return name

    async def settle_upload(self, *parts: bytes, **request: Any) -> tuple[str, str]:
        """A completed Upload that is settled, and its File; their names."""
        upload = await self.add_upload(*parts, **request)
        file = await self.complete(upload, *self.list_parts(upload))
        await self.wait(lambda: self.is_settled(upload))
        return upload, file

    async def change(self, plural: str, name: str, patch: dict[str, Any]) -> None:
        await self.kube.patch(plural, await self.kube.get(plural, name), patch)

    def find(self, plural: str, name: str) -> Any:
        """The object as it is now, None where it is gone."""
        return copy_object(self.kube.find(plural, name))

    def ready(self, name: str) -> tuple[str, str]:
        """Status and reason of a File's `Ready`; empty where it was not written."""
        conditions = ((self.find(FILES, name) or {}).get("status") or {}).get("conditions") or ()
        return next(((c["status"], c["reason"]) for c in conditions), ("", ""))

    def is_settled(self, upload: str) -> bool:
        obj = self.find(UPLOADS, upload) or {}
        return (obj.get("status") or {}).get("work") == "Settled"

    async def used(self, account: str = "demo") -> int:
        """Bytes of all members of the account's pool of files."""
        return (await self.ledger.read_used(account, "files")).bytes

    async def reconcile(self, orphan_seconds: float = DAY) -> int:
        """One pass over the store; how many orphans it removed."""
        parts = self.controllers or Controllers(self)
        return await OrphanRemoval(
            parts.storage, parts.intake, self.accounts, orphan_seconds
        ).sweep()

    async def prove(self, claim_seconds: float = 120.0) -> int:
        """One pass over the ledger; how many differences it repaired."""
        assert self.controllers is not None
        parts = self.controllers
        check = QuotaCheck(
            parts.storage,
            self.accounts,
            parts.files.recheck,
            parts.uploads.queue.add,
            claim_seconds=claim_seconds,
        )
        return await check.sweep()

    def count(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


def later(seconds: float) -> str:
    return format_time(read_now() + timedelta(seconds=seconds))
