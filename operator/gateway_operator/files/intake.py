"""Checks files: labels those that an admin made, and reports in `Ready` what is wrong with one.

The API and the operator make files with all that they need. A file made with kubectl, or restored
from a backup, has neither shard nor finalizer until it is found to be valid.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

from gateway_core.api.account import GatewayAccount
from gateway_core.api.conditions import ConditionType, Reason, update_conditions
from gateway_core.api.file import GatewayFile
from gateway_core.api.ids import FILE_PREFIX
from gateway_core.api.resource import Object
from gateway_core.api.times import format_time
from gateway_core.api.upload import GatewayUpload
from gateway_core.files.uploads import is_settled
from gateway_core.kube.informer import Cache
from gateway_core.providers.catalog import Problem
from gateway_core.storage.content import find_foreign
from gateway_core.storage.objects import ObjectMissing
from gateway_operator.accounts.readiness import change_ready
from gateway_operator.context import find_lacking
from gateway_operator.files.storage import FileStorage
from gateway_operator.uploads.controller import name_file

AT_ONCE = 4
"""Files whose bytes are checked concurrently."""
HEADS_AT_ONCE = 8
WHOLE = "all bytes are there"


def read_ready(obj: Object) -> dict[str, Any] | None:
    """Return the condition `Ready`."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c["type"] == ConditionType.READY), None)


def is_checked(obj: Object) -> bool:
    """Return whether `Ready` was written, and the metadata is complete if it is True."""
    ready = read_ready(obj)
    if ready is None or ready["status"] == "Unknown":
        return False
    return ready["status"] == "False" or not find_lacking(obj)


class Intake:
    """Checks files and reports in `Ready`."""

    def __init__(self, storage: FileStorage, accounts: Cache[GatewayAccount]) -> None:
        self._storage = storage
        self._context = storage.context
        self._accounts = accounts
        self._places = asyncio.Semaphore(AT_ONCE)

    async def check(self, obj: Object) -> Object:
        """Label a file and report whether its bytes are there; the new object.

        A file whose Upload was settled with another object was made too late, and is deleted.
        Raises WriteConflict, ObjectNotFound, StoreUnavailable, RecordUnavailable.
        """
        async with self._places:
            if await self._is_late(obj):
                meta = obj["metadata"]
                await self._context.kube.delete(GatewayFile.plural, meta["name"], uid=meta["uid"])
                return obj
            problem = self._find_problem(obj)
            lacking = find_lacking(obj)
            if problem is None and lacking:
                obj = await self._context.kube.patch(GatewayFile.plural, obj, {"metadata": lacking})
            return await self.show(obj, problem or await self.find_missing(obj))

    async def find_missing(self, obj: Object) -> Problem | None:
        """Return the problem of a file without its bytes or of another size. StoreUnavailable."""
        segments = obj["spec"]["request"]["segments"]
        wrong: list[str] = []
        for start in range(0, len(segments), HEADS_AT_ONCE):
            part = segments[start : start + HEADS_AT_ONCE]
            wrong += filter(None, await asyncio.gather(*map(self._check_segment, part)))
        if not wrong:
            return None
        first = f"{wrong[0]} ({len(wrong)} of {len(segments)} parts)"
        return Problem(Reason.BYTES_MISSING, first)

    async def show(self, obj: Object, problem: Problem | None) -> Object:
        """Write `Ready` where it differs; the new object. With an event if there is a problem.

        WriteConflict, Missing.
        """
        current = (obj.get("status") or {}).get("conditions") or ()
        generation = obj["metadata"].get("generation", 1)
        change = change_ready(current, generation, problem, now=self._context.now(), good=WHOLE)
        if not change:
            return obj
        new = await self._context.kube.patch_status(GatewayFile.plural, obj, change)
        if problem is not None:
            self._context.events.warn(obj, reason=problem.reason.value, message=problem.message)
        return new

    async def show_wait(self, obj: Object, reason: Reason, text: str) -> None:
        """Show in `Ready`, and in an event, what the check or the removal of a file waits for.

        WriteConflict, ObjectNotFound.
        """
        ready = read_ready(obj)
        if ready is not None and (ready["reason"], ready["message"]) == (reason, text):
            return
        generation = obj["metadata"].get("generation", 1)
        current = (obj.get("status") or {}).get("conditions") or ()
        change = [(ConditionType.READY, "Unknown", reason, text)]
        now = format_time(self._context.now())
        conditions = update_conditions(current, change, generation=generation, now=now)
        status = {"observedGeneration": generation, "conditions": conditions}
        await self._context.kube.patch_status(GatewayFile.plural, obj, status)
        self._context.events.warn(obj, reason=reason, message=text)

    def _find_problem(self, obj: Object) -> Problem | None:
        """Why the file cannot be the account's, if so."""
        name, account = obj["metadata"]["name"], obj["spec"]["request"]["accountName"]
        if self._accounts.get(account) is None:
            return Problem(Reason.ACCOUNT_NOT_FOUND, f"there is no account {account}")
        if not self._context.is_minted(FILE_PREFIX, name, account):
            text = f"{name} was not minted for {account}: nobody can ask for it"
            return Problem(Reason.NAME_NOT_MINTED, text)
        foreign = find_foreign(obj)
        if foreign:
            text = f"{_join(foreign)}: these lie in no place of this file's own"
            return Problem(Reason.INVALID_FIELD, text)
        return None

    async def _is_late(self, obj: Object) -> bool:
        """Return whether its Upload was settled with another object of its name, which is gone.

        An Upload is settled with a File's end after the bytes are removed. Where any are there the
        File was restored from a backup: then the Upload's status is made to name this object.
        """
        upload_name = obj["spec"]["request"].get("uploadName")
        if upload_name is None:
            return False
        upload = await self._storage.find(GatewayUpload.plural, upload_name)
        if upload is None or not is_settled(upload):
            return False
        completion = upload["spec"].get("completion") or {}
        uid = upload["status"].get("fileUid")
        is_its = completion.get("fileName") == obj["metadata"]["name"]
        if not (is_its and uid and uid != obj["metadata"]["uid"]):
            return False
        if not await self._has_bytes(obj):
            return True
        await self._context.kube.patch_status(GatewayUpload.plural, upload, name_file(obj))
        return False

    async def _has_bytes(self, obj: Object) -> bool:
        """Return whether any of the file's bytes are there. StoreUnavailable."""
        for segment in obj["spec"]["request"]["segments"]:
            try:
                await self._context.store.head(segment["key"])
            except ObjectMissing:
                continue
            return True
        return False

    async def _check_segment(self, segment: dict[str, Any]) -> str | None:
        try:
            found = await self._context.store.head(segment["key"])
        except ObjectMissing:
            return f"{segment['key']} is not in the object store"
        if found.bytes != segment["bytes"]:
            return f"{segment['key']} has {found.bytes} bytes, not {segment['bytes']}"
        return None


def _join(keys: Iterable[str]) -> str:
    listed = list(keys)
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")
