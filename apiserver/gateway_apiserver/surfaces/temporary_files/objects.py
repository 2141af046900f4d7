"""A temporary file's object, once its bytes are stored: recorded, replayed, shown (§2.2, §2.5).

Of several calls with one Idempotency-Key, the create of the object decides; each stores its bytes
under a key of its own, so that none overwrites those of another.
"""

import secrets
from datetime import UTC, datetime

from gateway_apiserver.access import Caller
from gateway_apiserver.surfaces.files.writing import FileWriter
from gateway_apiserver.surfaces.temporary_files.models import TemporaryFile
from gateway_core.api.errors import KeyReused, Unavailable
from gateway_core.api.ids import FILE_PREFIX, IdMint, id_to_name
from gateway_core.api.resource import Object, ObjectRef, temporary_key
from gateway_core.api.times import format_time
from gateway_core.files.addresses import LIFE_SECONDS, Address, TemporaryAddresses
from gateway_core.files.files import NewFile, find_expiry
from gateway_core.kube.kinds import FILES
from gateway_core.kube.repository import Repository
from gateway_core.storage.content import read_segments

CREATE_PATH = "/api/v1/files"
_UNTYPED = "application/octet-stream"


class TemporaryFiles:
    """Makes and finds the objects. `limit` is the bytes that an account may have of them."""

    def __init__(
        self,
        repository: Repository,
        writer: FileWriter,
        addresses: TemporaryAddresses,
        mint: IdMint,
        *,
        media_url: str,
        limit: int,
    ) -> None:
        self._repository = repository
        self._writer = writer
        self._addresses = addresses
        self._mint = mint
        self._media_url = media_url.rstrip("/")
        self._limit = limit

    def mint_name(self, account: str, key: str | None) -> str:
        """Return the name of a new file's object: always the same for one Idempotency-Key."""
        if key is None:
            wire_id = self._mint.mint_ordered(
                FILE_PREFIX, account, int(self._writer.clock() * 1000)
            )
        else:
            wire_id = self._mint.mint_keyed(FILE_PREFIX, account, f"POST {CREATE_PATH}", key)
        return id_to_name(wire_id)

    @staticmethod
    def choose_place(account: str, name: str) -> str:
        """Return a key of the object store that no other call writes."""
        return f"{temporary_key(account, name)}/{secrets.token_hex(8)}"

    async def check_room(self, account: str, size: int) -> None:
        """Raise StorageFull if `size` more bytes do not fit, before they are read."""
        await self._writer.quota.check_room(account, "temporary", size, self._limit)

    async def claim(self, account: str, name: str, size: int) -> None:
        """Claim storage for a file to be put; the operator ends unused claims. StorageFull."""
        await self._writer.quota.claim(account, "temporary", name, size, self._limit)

    async def find(self, name: str) -> Object | None:
        """Return the object of this name, also of an expired file. Unavailable."""
        return await self._repository.look_up(FILES, name)

    def replay(self, found: Object, fingerprint: str | None) -> TemporaryFile:
        """Return the response of the call that made it. KeyReused, Unavailable."""
        if found["spec"]["request"].get("fingerprint") != fingerprint:
            raise KeyReused
        if self.is_over(found):
            # its key is free as soon as the operator has removed it
            raise Unavailable("The file of this Idempotency-Key is being removed.", retry_after=1)
        return self.show(found)

    def is_over(self, obj: Object) -> bool:
        """Return whether the file is expired or being deleted."""
        expiry = find_expiry(obj)
        is_late = expiry is not None and expiry <= self._writer.clock()
        return is_late or "deletionTimestamp" in obj["metadata"]

    async def make(
        self,
        caller: Caller,
        name: str,
        filename: str,
        media_type: str,
        segment: ObjectRef,
        *,
        owns_bytes: bool = True,
        fingerprint: str | None = None,
    ) -> TemporaryFile:
        """Record a file whose bytes are stored; the response body.

        `owns_bytes`: after a failure they are removed. Bytes that were put stay, as a later call
        may confirm them. Raises StorageFull, KeyReused, Unavailable, OutcomeUnknown.
        """
        new = NewFile(
            name=name,
            account=caller.account,
            purpose="temporary",
            filename=filename,
            segments=(segment,),
            life=LIFE_SECONDS,
            key_name=caller.principal.key.name,
            media_type=media_type,
            fingerprint=fingerprint,
            request_id=caller.context.request_id,
        )
        made = await self._writer.record(new, self._limit, owns_bytes=owns_bytes)
        if made.is_new:
            return self.show(made.object)
        if owns_bytes and read_segments(made.object)[0].key != segment.key:
            await self._writer.remove(new)
        return self.replay(made.object, fingerprint)

    def show(self, obj: Object) -> TemporaryFile:
        """Return the response body, the same for one file each time."""
        request = obj["spec"]["request"]
        [segment] = read_segments(obj)
        media_type = request.get("mediaType", _UNTYPED)
        ends = find_expiry(obj)
        assert ends is not None, "a temporary file is made with a life"
        address = Address(segment.key, segment.bytes, segment.sha256, media_type, ends)
        path = self._addresses.make_read_path(address, request["filename"])
        return TemporaryFile(
            file_name=request["filename"],
            url=self._media_url + path,
            size_bytes=request["bytes"],
            mime_type=media_type,
            created_at=obj["metadata"]["creationTimestamp"],
            # that life exactly, as the operator counts it (§2.5)
            expires_at=format_time(datetime.fromtimestamp(ends, UTC)),
        )
