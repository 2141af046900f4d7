"""A temporary file's object, once its bytes are stored: claimed, recorded, replayed (§2.2, §2.5).

Of several calls with one Idempotency-Key, the create of the object decides; each stores its bytes
in a place of its own, so that none overwrites those of another.
"""

import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal

import structlog

from gateway_core.accounts.authentication import Principal
from gateway_core.api.errors import Internal, KeyReused, OutcomeUnknown, Unavailable
from gateway_core.api.file import GatewayFile
from gateway_core.api.ids import FILE_PREFIX, IdMint, id_to_name
from gateway_core.api.resource import Object, ObjectRef, temporary_key
from gateway_core.api.times import format_time
from gateway_core.files.addresses import LIFE_SECONDS, Address, TemporaryAddresses
from gateway_core.files.files import FileRecorder, NewFile, build_file, find_expiry
from gateway_core.files.quota import StorageFull, StorageQuota
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.clock import CLOCK
from gateway_core.kube.errors import (
    KubernetesError,
    KubernetesUnavailable,
    ObjectNotFound,
    WriteOutcomeUnknown,
)
from gateway_core.storage.content import read_segments
from gateway_core.storage.objects import ObjectStore, StoreUnavailable

POOL: Literal["temporary"] = "temporary"
CREATE_PATH = "/api/v1/files"
_UNTYPED = "application/octet-stream"

_log = structlog.get_logger(__name__)


class TemporaryFiles:
    """Makes and finds the objects. `limit` is the bytes that an account may have of them."""

    def __init__(
        self,
        kube: KubernetesClient,
        store: ObjectStore,
        gate: StorageQuota,
        recorder: FileRecorder,
        addresses: TemporaryAddresses,
        mint: IdMint,
        *,
        media_url: str,
        limit: int,
        clock: Callable[[], float] = CLOCK.time,
    ) -> None:
        self._kube = kube
        self._store = store
        self._gate = gate
        self._recorder = recorder
        self._addresses = addresses
        self._mint = mint
        self._media_url = media_url.rstrip("/")
        self._limit = limit
        self._clock = clock

    def mint_name(self, account: str, key: str | None) -> str:
        """The name of a new file's object: always the same for one Idempotency-Key."""
        if key is None:
            wire_id = self._mint.mint_ordered(FILE_PREFIX, account, int(self._clock() * 1000))
        else:
            wire_id = self._mint.mint_keyed(FILE_PREFIX, account, f"POST {CREATE_PATH}", key)
        return id_to_name(wire_id)

    @staticmethod
    def choose_place(account: str, name: str) -> str:
        """A key in the store that no other call writes."""
        return f"{temporary_key(account, name)}/{secrets.token_hex(8)}"

    async def check_room(self, account: str, size: int) -> None:
        """StorageFull where `size` bytes more do not fit, before they are read."""
        await self._gate.check_room(account, POOL, size, self._limit)

    async def claim(self, account: str, name: str, size: int) -> None:
        """Counts a file that is to be put. The operator ends it where none comes. StorageFull."""
        await self._gate.claim(account, POOL, name, size, self._limit)

    async def find(self, name: str) -> Object | None:
        """The object of this name, also one that is over. Unavailable."""
        try:
            return await self._kube.get(GatewayFile.plural, name)
        except ObjectNotFound:
            return None
        except KubernetesError as error:
            raise Unavailable("The files cannot be read now.", retry_after=1) from error

    def replay(self, found: Object, fingerprint: str | None) -> dict[str, Any]:
        """The answer of the call that made it. KeyReused, Unavailable."""
        if found["spec"]["request"].get("fingerprint") != fingerprint:
            raise KeyReused
        if self.is_over(found):
            # its key is free as soon as the operator has removed it
            raise Unavailable("The file of this Idempotency-Key is being removed.", retry_after=1)
        return self.show(found)

    def is_over(self, obj: Object) -> bool:
        """Whether the file is gone for clients."""
        expiry = find_expiry(obj)
        is_late = expiry is not None and expiry <= self._clock()
        return is_late or "deletionTimestamp" in obj["metadata"]

    async def make(
        self,
        caller: Principal,
        name: str,
        filename: str,
        media_type: str,
        segment: ObjectRef,
        *,
        request_id: str,
        owns_bytes: bool,
        fingerprint: str | None = None,
    ) -> dict[str, Any]:
        """The answer for a file whose bytes are stored.

        They are removed again where nothing comes of it, if they are this call's own: those that
        were put are confirmed by any call, also by one later. Raises StorageFull, KeyReused,
        Unavailable, OutcomeUnknown.
        """
        account = caller.account.name
        obj = build_file(
            NewFile(
                name=name,
                account=account,
                purpose=POOL,
                filename=filename,
                segments=(segment,),
                life=LIFE_SECONDS,
                key_name=caller.key.name,
                media_type=media_type,
                fingerprint=fingerprint,
                request_id=request_id,
            ),
            self._clock(),
        )
        made, is_own = await self._record(obj, account, segment, owns_bytes=owns_bytes)
        if not is_own:
            if owns_bytes and read_segments(made)[0].key != segment.key:
                await self.remove(segment.key)
            return self.replay(made, fingerprint)
        return self.show(made)

    async def _record(
        self, obj: Object, account: str, segment: ObjectRef, *, owns_bytes: bool
    ) -> tuple[Object, bool]:
        """The object that stands, and whether this call has made it."""
        name = obj["metadata"]["name"]
        try:
            await self._gate.claim(account, POOL, name, segment.bytes, self._limit)
            made = await self._recorder.create(obj)
        except WriteOutcomeUnknown as error:
            # bytes and claim stay: the object may be there
            raise OutcomeUnknown(
                "The file was not acknowledged in time; it may have been created."
            ) from error
        except Exception as error:
            if owns_bytes:
                await self.remove(segment.key)
                if "fingerprint" not in obj["spec"]["request"]:
                    # with a key the claim may be another call's: the operator ends unused ones
                    await self._gate.release(account, POOL, name)
            if isinstance(error, KubernetesUnavailable):
                raise Unavailable("The file could not be recorded.", retry_after=1) from error
            if isinstance(error, KubernetesError):
                _log.error("a temporary file was refused", file=name, error=str(error))
                raise Internal("The file could not be recorded.") from error
            raise
        if made.is_new:
            try:
                await self._gate.confirm(account, POOL, name, segment.bytes, self._limit)
            except StorageFull:
                # the operator removes the bytes of what was an object
                await self._recorder.withdraw(made.object)
                raise
        return made.object, made.is_new

    async def remove(self, key: str) -> None:
        """Remove bytes of a failed create; the operator removes those that remain."""
        try:
            await self._store.delete(key)
        except StoreUnavailable as error:
            _log.warning("bytes of a temporary file were left", error=str(error))

    def show(self, obj: Object) -> dict[str, Any]:
        """The response body, the same for one file each time."""
        request = obj["spec"]["request"]
        [segment] = read_segments(obj)
        media_type = request.get("mediaType", _UNTYPED)
        ends = find_expiry(obj)
        assert ends is not None, "a temporary file is made with a life"
        address = Address(segment.key, segment.bytes, segment.sha256, media_type, ends)
        path = self._addresses.make_read_path(address, request["filename"])
        return {
            "file_name": request["filename"],
            "url": self._media_url + path,
            "size_bytes": request["bytes"],
            "mime_type": media_type,
            "created_at": obj["metadata"]["creationTimestamp"],
            # that life exactly, as the operator counts it (§2.5)
            "expires_at": format_time(datetime.fromtimestamp(ends, UTC)),
        }
