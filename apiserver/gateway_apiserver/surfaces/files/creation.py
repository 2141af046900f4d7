"""Making a File of one request (contract §3.1 to §3.3): its bytes go straight into the store.

The order is bytes, then claim, then object, so that no object is without bytes or claim; a create
that fails takes back what came before. The form may say what the file is for after its bytes: so it
is read to its end before the store completes the object.
"""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass

import structlog

from gateway_apiserver.failpoints import Failpoints
from gateway_apiserver.routing import Call
from gateway_apiserver.surfaces.bodies import ANCHOR, check_word, invalid, missing
from gateway_apiserver.surfaces.forms import MOST_ENVELOPE_BYTES, Form
from gateway_core.accounts.authentication import Principal
from gateway_core.api.errors import Internal, OutcomeUnknown, TooLarge, Unavailable
from gateway_core.api.ids import FILE_PREFIX, IdMint, id_to_name
from gateway_core.api.resource import Object, file_key
from gateway_core.files.files import (
    DIRECT_BATCH_BYTES,
    DIRECT_LIMITS,
    LONGEST_SECONDS,
    PURPOSES,
    SHORTEST_SECONDS,
    FileRecorder,
    NewFile,
    Purpose,
    build_file,
    clean_filename,
    find_life,
)
from gateway_core.files.quota import StorageFull, StorageQuota
from gateway_core.kube.clock import CLOCK
from gateway_core.kube.errors import KubernetesError, KubernetesUnavailable, WriteOutcomeUnknown
from gateway_core.storage.limits import StreamLimiter
from gateway_core.storage.objects import (
    ObjectStore,
    ObjectTooLarge,
    StoredObject,
    StoreUnavailable,
)

FIELD = "file"
_ANCHOR_FIELD = "expires_after[anchor]"
_SECONDS_FIELD = "expires_after[seconds]"
_FIELDS = ("purpose", _ANCHOR_FIELD, _SECONDS_FIELD)
_SLACK_BYTES = 64 * 1024
"""What a body may well have beside its file, where only its whole length is known."""

_log = structlog.get_logger(__name__)


class FileTooLarge(TooLarge):
    """More bytes than a file of its purpose may have (§3.2)."""

    code = "file_too_large"

    def __init__(self, most: int, *, param: str = FIELD) -> None:
        super().__init__(f"The file may have at most {most} bytes.", param=param)


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a form says of its file; `life` is seconds, None for ever."""

    purpose: Purpose
    life: int | None


class FileCreation:
    """Makes files. `clock` gives Unix seconds."""

    def __init__(
        self,
        store: ObjectStore,
        gate: StorageQuota,
        recorder: FileRecorder,
        mint: IdMint,
        failpoints: Failpoints,
        streams: StreamLimiter,
        *,
        clock: Callable[[], float] = CLOCK.time,
    ) -> None:
        self._store = store
        self._gate = gate
        self._recorder = recorder
        self._mint = mint
        self._failpoints = failpoints
        self._streams = streams
        self._clock = clock

    async def create(self, call: Call, caller: Principal) -> Object:
        """The GatewayFile that the call's form has made.

        Raises the errors of contract §3.2; nothing is left of what failed, unless it is not known
        whether it did (OutcomeUnknown).
        """
        account = caller.account
        form = Form(call.headers, call.receive, FIELD, known=_FIELDS)
        declared = call.declared_length
        if declared > DIRECT_BATCH_BYTES + MOST_ENVELOPE_BYTES:
            raise FileTooLarge(DIRECT_BATCH_BYTES)
        # what cannot fit is not read
        at_least = max(0, declared - _SLACK_BYTES)
        await self._gate.check_room(account.name, "files", at_least, account.storage_bytes)
        if not await form.find_file():
            raise missing(FIELD)
        minted = self._mint.mint_ordered(FILE_PREFIX, account.name, int(self._clock() * 1000))
        name = id_to_name(minted)
        async with self._streams.take(account.name):
            stored = await self._store_bytes(form, file_key(account.name, name))
        self._failpoints.reach("after-file-bytes")
        wishes = read_wishes(form.fields)
        new = NewFile(
            name=name,
            account=account.name,
            purpose=wishes.purpose,
            filename=clean_filename(form.filename or ""),
            segments=(stored.refer(),),
            life=wishes.life,
            key_name=caller.key.name,
            request_id=call.context.request_id,
        )
        return await self._record(new, account.storage_bytes)

    async def _store_bytes(self, form: Form, key: str) -> StoredObject:
        async with aclosing(_check_bytes(form)) as source:
            try:
                return await self._store.put_stream(key, source, max_bytes=DIRECT_BATCH_BYTES)
            except ObjectTooLarge:
                raise FileTooLarge(DIRECT_BATCH_BYTES) from None
            except StoreUnavailable as error:
                _log.warning("a file could not be stored", error=str(error))
                raise Unavailable("The file cannot be stored now.") from error

    async def _record(self, new: NewFile, limit: int) -> Object:
        """Claims the stored bytes and makes the object."""
        size = sum(segment.bytes for segment in new.segments)
        claimed = False
        try:
            await self._gate.claim(new.account, "files", new.name, size, limit)
            claimed = True
            self._failpoints.reach("after-file-claim")
            made = await self._recorder.create(build_file(new, self._clock()))
        except WriteOutcomeUnknown as error:
            # bytes and claim stay: the object may be there
            raise OutcomeUnknown(
                "The file was not acknowledged in time; it may have been created."
            ) from error
        except Exception as error:
            await self._take_back(new, claimed=claimed)
            if isinstance(error, KubernetesUnavailable):
                raise Unavailable("The file could not be recorded.", retry_after=1) from error
            if isinstance(error, KubernetesError):
                _log.error("a file was refused", file=new.name, error=str(error))
                raise Internal("The file could not be recorded.") from error
            raise
        self._failpoints.reach("after-file-object")
        try:
            await self._gate.confirm(new.account, "files", new.name, size, limit)
        except StorageFull:
            # the operator removes the bytes of what was an object
            await self._recorder.withdraw(made.object)
            raise
        return made.object

    async def _take_back(self, new: NewFile, *, claimed: bool) -> None:
        """Removes what a failed create has left; the operator finds what is left even so."""
        if claimed:
            await self._gate.release(new.account, "files", new.name)
        try:
            await self._store.delete_many(segment.key for segment in new.segments)
        except StoreUnavailable as error:
            _log.warning("bytes of a failed create were left", file=new.name, error=str(error))


def read_wishes(fields: Mapping[str, str]) -> Wishes:
    """What the form's fields say. InvalidRequest."""
    purpose = read_purpose(fields)
    if purpose is None:
        raise missing("purpose")
    return Wishes(purpose, find_life(purpose, _read_life(fields)))


def read_purpose(fields: Mapping[str, str]) -> Purpose | None:
    """The purpose, None where none has come yet. InvalidRequest."""
    text = fields.get("purpose")
    if text is None:
        return None
    check_word(text, "purpose", PURPOSES)
    return "batch" if text == "batch" else "user_data"


async def _check_bytes(form: Form) -> AsyncGenerator[bytes, None]:
    """The file's bytes; raises before the end unless the whole form is good."""
    size = 0
    _check_fields_so_far(form, size)
    async with aclosing(form.stream()) as chunks:
        async for chunk in chunks:
            size += len(chunk)
            _check_fields_so_far(form, size)
            yield chunk
    _check_fields_so_far(form, size)
    if size == 0:
        raise invalid(FIELD, "must not be empty", code="empty_file")
    read_wishes(form.fields)


def _check_fields_so_far(form: Form, size: int) -> None:
    purpose = read_purpose(form.fields)
    most = DIRECT_BATCH_BYTES if purpose is None else DIRECT_LIMITS[purpose]
    if size > most:
        raise FileTooLarge(most)


def _read_life(fields: Mapping[str, str]) -> int | None:
    """Seconds that were asked for, both fields or neither. InvalidRequest."""
    anchor, seconds = fields.get(_ANCHOR_FIELD), fields.get(_SECONDS_FIELD)
    if anchor is None and seconds is None:
        return None
    if anchor is None:
        raise missing(_ANCHOR_FIELD)
    if seconds is None:
        raise missing(_SECONDS_FIELD)
    check_word(anchor, _ANCHOR_FIELD, (ANCHOR,))
    is_number = seconds.isascii() and seconds.isdigit() and len(seconds) <= 9
    if not is_number or not SHORTEST_SECONDS <= int(seconds) <= LONGEST_SECONDS:
        raise invalid(
            _SECONDS_FIELD, f"must be an integer from {SHORTEST_SECONDS} to {LONGEST_SECONDS}"
        )
    return int(seconds)
