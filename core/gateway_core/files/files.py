"""Files: limits, names, expiry and rendering (pure), and creating and deleting their objects."""

import asyncio
import time
import unicodedata
from collections.abc import Callable, Mapping
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
    name_to_id,
    shard_of,
)
from gateway_core.api.resource import Object, ObjectRef, skeleton
from gateway_core.files.quota_counters import StorageLedger, StorageUnavailable
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import (
    AlreadyExists,
    KubernetesError,
    KubernetesUnavailable,
    ObjectNotFound,
    WriteConflict,
    WriteOutcomeUnknown,
)

USER_DATA_BYTES = 52_428_800
DIRECT_BATCH_BYTES = 95_000_000
SHORTEST_SECONDS = 3600
LONGEST_SECONDS = 2_592_000
MOST_NAME_BYTES = 255

Purpose = Literal["user_data", "batch"]
PURPOSES: tuple[Purpose, ...] = ("user_data", "batch")
"""What a client may make; `batch_output` is the gateway's alone."""
SHOWN_PURPOSES = (*PURPOSES, "batch_output")
DIRECT_LIMITS: Mapping[Purpose, int] = {
    "user_data": USER_DATA_BYTES,
    "batch": DIRECT_BATCH_BYTES,
}
"""Bytes of one that is made by one request (§3.2)."""
_DEFAULT_SECONDS: Mapping[Purpose, int] = {"batch": LONGEST_SECONDS}


@dataclass(frozen=True, slots=True)
class FileRecord:
    """What is told of a file. Times are Unix seconds; `expires_at` None for never."""

    name: str
    account: str
    purpose: str
    filename: str
    bytes: int
    created_at: int
    expires_at: int | None

    def is_gone(self, now: float) -> bool:
        """Whether its life is over by the clock; the operator removes it when it comes to it."""
        return self.expires_at is not None and now >= self.expires_at


def read_file(obj: Mapping[str, Any]) -> FileRecord | None:
    """The record of a GatewayFile; None of one that is being deleted."""
    meta, request = obj["metadata"], obj["spec"]["request"]
    if meta.get("deletionTimestamp"):
        return None
    return FileRecord(
        name=meta["name"],
        # a process holds one of these for every file: what is alike is held once
        account=intern(request["accountName"]),
        purpose=intern(request["purpose"]),
        filename=request["filename"],
        bytes=request["bytes"],
        created_at=_read_seconds(meta["creationTimestamp"]),
        expires_at=find_expiry(obj),
    )


def find_expiry(obj: Mapping[str, Any]) -> int | None:
    """From when on a GatewayFile is gone, in Unix seconds; None for never.

    Counted from the creation where a life was asked for, so that it is that life exactly (§3.1).
    """
    request = obj["spec"]["request"]
    life = request.get("expiresAfterSeconds")
    if life is not None:
        return _read_seconds(obj["metadata"]["creationTimestamp"]) + int(life)
    text = request.get("expirationTime")
    return None if text is None else _read_seconds(text)


def find_life(purpose: Purpose, asked: int | None) -> int | None:
    """Seconds that a file lives: as asked for, else by its purpose; None for ever (§3.1)."""
    return _DEFAULT_SECONDS.get(purpose) if asked is None else asked


def render_file(record: FileRecord) -> dict[str, Any]:
    """The File object (§3, annex B.1). Nothing is processed later, so it always is `processed`."""
    return {
        "id": name_to_id(record.name),
        "object": "file",
        "bytes": record.bytes,
        "created_at": record.created_at,
        "expires_at": record.expires_at,
        "filename": record.filename,
        "purpose": record.purpose,
        "status": "processed",
        "status_details": None,
    }


def clean_filename(text: str) -> str:
    """The last part of a path, without control characters, of at most 255 bytes (§3.3).

    `file` where nothing is left of it.
    """
    last = text.replace("\\", "/").rpartition("/")[2]
    kept = "".join(c for c in last if unicodedata.category(c) not in ("Cc", "Cs")).strip()
    short = kept.encode()[:MOST_NAME_BYTES].decode(errors="ignore").strip()
    return short if short not in ("", ".", "..") else "file"


def _read_seconds(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


GIVE_UP_SECONDS = 10.0
REFUSE_SECONDS = 0.5
"""Time to go on trying where nothing has been sent."""
_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8)
_NOTE_PAUSES = (0.05, 0.2, 0.0)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """A file that is to be: its bytes are stored. `life` is seconds, None for ever."""

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


@dataclass(frozen=True, slots=True)
class Made:
    """The object that stands, and whether this call made it."""

    object: Object
    is_new: bool


def build_file(new: NewFile, now: float) -> Object:
    """The object to be created; `now` is Unix seconds."""
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

    def __init__(
        self,
        kube: KubernetesClient,
        ledger: StorageLedger,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._ledger = ledger
        self._clock = clock

    async def create(self, obj: Object) -> Made:
        """Creates `obj`, or finds the one of its name.

        Raises:
            KubernetesUnavailable: the Kubernetes API is away, and nothing was sent.
            WriteOutcomeUnknown: sent and not acknowledged within 10 s; it may be there.
            RequestRejected: a rule of the schema or an admission forbids it.
        """
        made = await self._create(obj)
        if made.is_new:
            await self._note(made.object)
        return made

    async def delete(self, obj: Object, *, exact: bool = True) -> None:
        """Deletes the very version that was read, and is sure of it when it returns.

        Without `exact` it deletes any version of that very object.

        Raises:
            WriteConflict: it has changed since; read it anew.
            KubernetesUnavailable, WriteOutcomeUnknown: as the port has them.
        """
        meta = obj["metadata"]
        version = meta["resourceVersion"] if exact else ""
        left = await self._kube.delete(
            GatewayFile.plural, meta["name"], uid=meta["uid"], version=version
        )
        if left is None:
            # without a finalizer it was gone at once, and the answer tells no version
            await self.note_gone(obj)
        else:
            await self._note(left)

    async def note_gone(self, obj: Object) -> None:
        """Tells the lists of other processes that `obj` is gone, in whatever version that was.

        Raises KubernetesUnavailable.
        """
        page = await self._kube.list_page(GatewayFile.plural, limit=1, metadata_only=True)
        meta = {**obj["metadata"], "resourceVersion": page.resource_version}
        await self._note({**obj, "metadata": meta})

    async def withdraw(self, obj: Object) -> None:
        """Deletes an object that was to be none, however it has changed since it was made.

        OutcomeUnknown where 10 s do not do: it may stand, a file like any other, and be counted
        beyond its account's limit from the operator's next proof on.
        """
        deadline, attempt = self._clock() + GIVE_UP_SECONDS, 0
        while True:
            try:
                async with asyncio.timeout(max(0.0, deadline - self._clock())):
                    await self.delete(obj, exact=False)
            except WriteConflict:
                # that very object is gone: there is another one of its name
                return
            except (KubernetesError, TimeoutError) as error:
                failed = error
            else:
                return
            pause = _choose_pause(attempt)
            attempt += 1
            if self._clock() + pause >= deadline:
                name, text = obj["metadata"]["name"], str(failed)
                _log.error("a file over its account's limit is left", file=name, error=text)
                raise OutcomeUnknown(
                    "There is no room for the file, and it was not taken back in time: it may have "
                    "been created."
                ) from failed
            await asyncio.sleep(pause)

    async def _create(self, obj: Object) -> Made:
        begin = self._clock()
        deadline, refuse_at = begin + GIVE_UP_SECONDS, begin + REFUSE_SECONDS
        sent: WriteOutcomeUnknown | None = None
        attempt = 0
        while True:
            try:
                async with asyncio.timeout(max(0.0, deadline - self._clock())):
                    return await self._try(obj, may_be_own=sent is not None)
            except WriteOutcomeUnknown as error:
                sent = error
            except TimeoutError as error:
                sent = WriteOutcomeUnknown("no answer in time")
                sent.__cause__ = error
            except KubernetesUnavailable:
                if sent is None and self._clock() >= refuse_at:
                    raise
            pause = _choose_pause(attempt)
            attempt += 1
            if sent is not None and self._clock() + pause >= deadline:
                raise sent
            await asyncio.sleep(pause)

    async def _try(self, obj: Object, *, may_be_own: bool) -> Made:
        try:
            return Made(await self._kube.create(GatewayFile.plural, obj), is_new=True)
        except AlreadyExists:
            pass
        try:
            found = await self._kube.get(GatewayFile.plural, obj["metadata"]["name"])
        except ObjectNotFound as error:
            raise KubernetesUnavailable("one of that name was there, and is gone") from error
        # of a create that was not acknowledged, the object may be this call's
        own = may_be_own and found["spec"] == obj["spec"] and _mark(found) == _mark(obj)
        return Made(found, is_new=own)

    async def _note(self, obj: Object) -> None:
        """Tells the lists of other processes, of what is in lists.

        What cannot be told they learn by their watches.
        """
        request, version = obj["spec"]["request"], obj["metadata"]["resourceVersion"]
        if request["purpose"] == "temporary":
            return
        account = request["accountName"]
        for pause in _NOTE_PAUSES:
            try:
                await self._ledger.note_version(account, int(version))
            except StorageUnavailable:
                await asyncio.sleep(pause)
            else:
                return
        _log.warning("a version of an account's files could not be told", account=account)


def _choose_pause(attempt: int) -> float:
    return _PAUSES[min(attempt, len(_PAUSES) - 1)]


def _mark(obj: Object) -> str | None:
    value: str | None = (obj["metadata"].get("annotations") or {}).get(REQUEST_ID_ANNOTATION)
    return value
