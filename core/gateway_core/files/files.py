"""Files: limits, names and expiry (pure), creation and deletion of their objects."""

import asyncio
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from sys import intern
from typing import Any, Literal

import structlog

from gateway_core.api.errors import OutcomeUnknown
from gateway_core.api.file import GatewayFile
from gateway_core.api.ids import (
    ACCOUNT_LABEL,
    REQUEST_ID_ANNOTATION,
    SHARD_LABEL,
    STORED_FINALIZER,
    shard_of,
)
from gateway_core.api.resource import Object, ObjectRef, skeleton
from gateway_core.files.quota_counters import StorageLedger
from gateway_core.kube.client import Created, KubernetesClient
from gateway_core.kube.errors import (
    AlreadyExists,
    KubernetesError,
    KubernetesUnavailable,
    WriteConflict,
    WriteOutcomeUnknown,
)
from gateway_core.kube.retries import retry_write
from gateway_core.redis.link import CountersUnavailable

USER_DATA_BYTES = 52_428_800
DIRECT_BATCH_BYTES = 95_000_000
SHORTEST_SECONDS = 3600
LONGEST_SECONDS = 2_592_000
MOST_NAME_BYTES = 255

Purpose = Literal["user_data", "batch"]
PURPOSES: tuple[Purpose, ...] = ("user_data", "batch")
"""Purposes that clients may set; `batch_output` is reserved for the gateway."""
SHOWN_PURPOSES = (*PURPOSES, "batch_output")
DIRECT_LIMITS: Mapping[Purpose, int] = {
    "user_data": USER_DATA_BYTES,
    "batch": DIRECT_BATCH_BYTES,
}
"""Most bytes of a file that is created by one request (§3.2)."""
_DEFAULT_SECONDS: Mapping[Purpose, int] = {"batch": LONGEST_SECONDS}


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Fields of a file on the wire. Times are Unix seconds; `expires_at` None for never."""

    name: str
    account: str
    purpose: str
    filename: str
    bytes: int
    created_at: int
    expires_at: int | None

    def is_gone(self, now: float) -> bool:
        """Return whether the file has expired; the operator removes it some time later."""
        return self.expires_at is not None and now >= self.expires_at


def read_file(obj: Mapping[str, Any]) -> FileRecord | None:
    """Return the record of a GatewayFile; None while it is being deleted."""
    meta, request = obj["metadata"], obj["spec"]["request"]
    if meta.get("deletionTimestamp"):
        return None
    return FileRecord(
        name=meta["name"],
        # interned: a process keeps a record of every file
        account=intern(request["accountName"]),
        purpose=intern(request["purpose"]),
        filename=request["filename"],
        bytes=request["bytes"],
        created_at=_read_seconds(meta["creationTimestamp"]),
        expires_at=find_expiry(obj),
    )


def find_expiry(obj: Mapping[str, Any]) -> int | None:
    """Expiry of a GatewayFile in Unix seconds; None for never.

    A requested lifetime counts from the creation, so that it is exact (§3.1).
    """
    request = obj["spec"]["request"]
    life = request.get("expiresAfterSeconds")
    if life is not None:
        return _read_seconds(obj["metadata"]["creationTimestamp"]) + int(life)
    text = request.get("expirationTime")
    return None if text is None else _read_seconds(text)


def find_life(purpose: Purpose, asked: int | None) -> int | None:
    """Lifetime of a file in seconds, as requested or by its purpose; None for ever (§3.1)."""
    return _DEFAULT_SECONDS.get(purpose) if asked is None else asked


def clean_filename(text: str) -> str:
    """Return the last part of a path without control characters, at most 255 bytes (§3.3).

    `file` if that is empty.
    """
    last = text.replace("\\", "/").rpartition("/")[2]
    kept = "".join(c for c in last if unicodedata.category(c) not in ("Cc", "Cs")).strip()
    short = kept.encode()[:MOST_NAME_BYTES].decode(errors="ignore").strip()
    return short if short not in ("", ".", "..") else "file"


def _read_seconds(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


_NOTE_PAUSES = (0.05, 0.2, 0.0)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """A file to create, whose bytes are stored. `life` is seconds, None for ever."""

    name: str
    account: str
    purpose: str
    filename: str
    segments: tuple[ObjectRef, ...]
    life: int | None = None
    key_name: str | None = None
    media_type: str | None = None
    upload_name: str | None = None
    batch_name: str | None = None
    fingerprint: str | None = None
    request_id: str | None = None


def build_file(new: NewFile, now: float) -> Object:
    """Return the GatewayFile to create; `now` is Unix seconds."""
    notes = {REQUEST_ID_ANNOTATION: new.request_id} if new.request_id else {}
    optional = {
        "keyName": new.key_name,
        "mediaType": new.media_type,
        "uploadName": new.upload_name,
        "batchName": new.batch_name,
        "fingerprint": new.fingerprint,
    }
    if new.life is not None:
        ends = datetime.fromtimestamp(int(now) + new.life, UTC)
        optional["expirationTime"] = ends.strftime("%Y-%m-%dT%H:%M:%SZ")
    request = {
        "accountName": new.account,
        "purpose": new.purpose,
        "filename": new.filename,
        "bytes": sum(segment.bytes for segment in new.segments),
        "segments": [
            segment.model_dump(by_alias=True, exclude_none=True) for segment in new.segments
        ],
        **({} if new.life is None else {"expiresAfterSeconds": new.life}),
        **{field: value for field, value in optional.items() if value is not None},
    }
    head = skeleton(
        GatewayFile,
        new.name,
        labels={ACCOUNT_LABEL: new.account, SHARD_LABEL: str(shard_of(new.name))},
        annotations=notes,
        finalizers=[STORED_FINALIZER],
    )
    return {**head, "spec": {"request": request}}


class FileRecorder:
    """Creates and deletes GatewayFiles."""

    def __init__(self, kube: KubernetesClient, ledger: StorageLedger) -> None:
        self._kube = kube
        self._ledger = ledger

    async def create(self, obj: Object) -> Created:
        """Create `obj`, or get the one of its name.

        Raises:
            KubernetesUnavailable: nothing was sent.
            WriteOutcomeUnknown: sent and not acknowledged within 10 s; it may exist.
            RequestRejected: a rule of the schema or an admission forbids it.
        """
        try:
            made = await self._kube.create_or_get(GatewayFile.plural, obj)
        except AlreadyExists as error:
            raise KubernetesUnavailable("a file of that name cannot be read") from error
        if made.is_new:
            await self._note(made.object)
        return made

    async def delete(self, obj: Object, *, exact: bool = True) -> None:
        """Delete the version that was read; without `exact`, any version of that object (uid).

        Raises WriteConflict where it has changed since, KubernetesUnavailable, WriteOutcomeUnknown.
        """
        meta = obj["metadata"]
        version = meta["resourceVersion"] if exact else ""
        left = await self._kube.delete(
            GatewayFile.plural, meta["name"], uid=meta["uid"], version=version
        )
        if left is None:
            # without a finalizer it is gone at once, and the response has no version
            await self.note_gone(obj)
        else:
            await self._note(left)

    async def note_gone(self, obj: Object) -> None:
        """Note for other processes' lists that `obj` is gone. KubernetesUnavailable."""
        page = await self._kube.list_page(GatewayFile.plural, limit=1, metadata_only=True)
        meta = {**obj["metadata"], "resourceVersion": page.resource_version}
        await self._note({**obj, "metadata": meta})

    async def withdraw(self, obj: Object) -> None:
        """Delete an object for which there is no room, whatever its version.

        OutcomeUnknown after 10 s: the file stays, and counts beyond its account's limit from the
        operator's next check on.
        """

        async def delete() -> None:
            try:
                await self.delete(obj, exact=False)
            except WriteConflict:
                # another object has the name by now
                return
            except KubernetesUnavailable as error:
                # the file exists, so this is worth the whole time of a lost answer
                raise WriteOutcomeUnknown(str(error)) from error

        try:
            await retry_write(delete)
        except KubernetesError as error:
            name = obj["metadata"]["name"]
            _log.error("a file over its account's limit is left", file=name, error=str(error))
            raise OutcomeUnknown(
                "There is no room for the file, and it was not taken back in time: it may have "
                "been created."
            ) from error

    async def _note(self, obj: Object) -> None:
        """Note the version for lists of other processes, whose watches may be behind."""
        request, version = obj["spec"]["request"], obj["metadata"]["resourceVersion"]
        if request["purpose"] == "temporary":
            return
        account = request["accountName"]
        for pause in _NOTE_PAUSES:
            try:
                await self._ledger.note_version(account, int(version))
            except CountersUnavailable:
                await asyncio.sleep(pause)
            else:
                return
        _log.warning("a version of an account's files could not be told", account=account)
