"""Temporary files that are put on the media host: issued URLs, and their confirmation (§2.5)."""

import hashlib
from collections.abc import Callable
from contextlib import aclosing

from gateway_apiserver.access import Caller
from gateway_apiserver.surfaces.temporary_files.models import (
    PreparedFile,
    TemporaryFile,
    TemporaryFilePrepare,
)
from gateway_apiserver.surfaces.temporary_files.objects import TemporaryFiles
from gateway_apiserver.surfaces.temporary_files.streaming import Head, find_media_type
from gateway_core.api.errors import Conflict, NotFound, Unavailable
from gateway_core.api.resource import ObjectRef, put_key
from gateway_core.files.addresses import TICKET_SECONDS, TemporaryAddresses, Ticket
from gateway_core.files.files import clean_filename
from gateway_core.kube.clock import CLOCK
from gateway_core.storage.objects import ObjectMissing, ObjectStore, StoreUnavailable


class FilePuts:
    """Issues URLs for a PUT, and makes files of what was put. `clock` gives Unix seconds."""

    def __init__(
        self,
        files: TemporaryFiles,
        store: ObjectStore,
        addresses: TemporaryAddresses,
        *,
        media_url: str,
        clock: Callable[[], float] = CLOCK.time,
    ) -> None:
        self._files = files
        self._store = store
        self._addresses = addresses
        self._media_url = media_url.rstrip("/")
        self._clock = clock

    async def prepare(self, account: str, wanted: TemporaryFilePrepare) -> PreparedFile:
        """Issue a URL, and claim storage for the file. StorageFull, Unavailable."""
        name = self._files.mint_name(account, None)
        await self._files.claim(account, name, wanted.byte_size)
        key = put_key(account, name)
        now = int(self._clock())
        ticket = Ticket(
            account, name, key, clean_filename(wanted.filename), wanted.byte_size, wanted.md5, now
        )
        return PreparedFile(
            upload_url=self._media_url + self._addresses.make_put_path(ticket),
            headers={},
            signed_id=self._addresses.make_signed_id(ticket),
        )

    async def confirm(self, caller: Caller, signed_id: str) -> TemporaryFile:
        """Make the file, or show the one of an earlier confirmation.

        Raises NotFound, Conflict before the PUT, StorageFull, Unavailable, OutcomeUnknown.
        """
        ticket = self._addresses.find_ticket(signed_id, caller.account)
        if ticket is None:
            raise _unknown()
        found = await self._files.find(ticket.file_name)
        if found is not None:
            if self._files.is_over(found):
                raise _unknown()
            return self._files.show(found)
        if self._clock() >= ticket.issued_at + TICKET_SECONDS:
            raise _unknown()
        segment, media_type = await self._read_put(ticket)
        return await self._files.make(
            caller, ticket.file_name, ticket.filename, media_type, segment, owns_bytes=False
        )

    async def _read_put(self, ticket: Ticket) -> tuple[ObjectRef, str]:
        """Return the bytes that were put, read to compute their digests. Conflict, Unavailable."""
        sha256, md5, size, head = hashlib.sha256(), hashlib.md5(usedforsecurity=False), 0, Head()

        def examine(chunk: bytes) -> None:
            sha256.update(chunk)
            md5.update(chunk)

        try:
            async with aclosing(self._store.stream(ticket.key, examine=examine)) as chunks:
                async for chunk in chunks:
                    size += len(chunk)
                    head.note(chunk)
        except ObjectMissing:
            raise Conflict("Nothing was uploaded yet.") from None
        except StoreUnavailable as error:
            raise Unavailable("The file cannot be read now.") from error
        if (size, md5.hexdigest()) != (ticket.bytes, ticket.md5):
            raise Unavailable("The file cannot be read now.")
        segment = ObjectRef(key=ticket.key, bytes=size, sha256=sha256.hexdigest())
        return segment, find_media_type(head.bytes, ticket.filename)


def _unknown() -> NotFound:
    return NotFound("No upload of this signed_id is known.")
