"""Files, Uploads and Batches of the account of a key, one method a call of `/v1`."""

import io
import unicodedata
from collections.abc import AsyncIterator, Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

import aiohttp

from gateway_cli.rest.calls import Body, RestCalls

TRANSFER_SECONDS = 600.0
"""For a call that carries bytes: 8 MiB over the slowest line that is of any use."""
FILE_PAGE, BATCH_PAGE = 1000, 100


class StorageApi:
    """What the commands ask of these three; every call raises RestError as `RestCalls` does."""

    def __init__(self, calls: RestCalls) -> None:
        self.calls = calls

    async def create_file(
        self, name: str, content: bytes, purpose: str, expires_after: int | None
    ) -> Body:
        """A File of these bytes; repeated only where it is sure that none was made."""

        def form() -> aiohttp.FormData:
            data = aiohttp.FormData(quote_fields=False)
            data.add_field("purpose", purpose)
            for word, value in _expiry(expires_after).items():
                data.add_field(f"expires_after[{word}]", str(value))
            _add_bytes(data, "file", content, name)
            return data

        return await self.calls.insist(
            "POST", "/v1/files", form=form, seconds=TRANSFER_SECONDS, repeat=False
        )

    async def get_file(self, file_id: str) -> Body:
        """A File's object."""
        return await self.calls.insist("GET", f"/v1/files/{_segment(file_id)}")

    async def delete_file(self, file_id: str) -> Body:
        """Deletes a File."""
        return await self.calls.insist("DELETE", f"/v1/files/{_segment(file_id)}")

    def list_files(self, purpose: str | None) -> AsyncIterator[Body]:
        """All Files, newest first, page by page."""
        query = f"&purpose={purpose}" if purpose else ""
        return self._list("/v1/files", FILE_PAGE, query)

    async def create_upload(self, body: Body, idempotency_key: str) -> Body:
        """An Upload; the same one for the same key."""
        headers = {"Idempotency-Key": idempotency_key}
        return await self.calls.insist("POST", "/v1/uploads", headers=headers, body=body)

    async def add_part(self, upload_id: str, content: bytes) -> str:
        """The id of a new Part. One whose answer is lost stays behind, to no harm."""

        def form() -> aiohttp.FormData:
            data = aiohttp.FormData(quote_fields=False)
            _add_bytes(data, "data", content, "part")
            return data

        path = f"/v1/uploads/{_segment(upload_id)}/parts"
        part = await self.calls.insist("POST", path, form=form, seconds=TRANSFER_SECONDS)
        return str(part["id"])

    async def complete_upload(self, upload_id: str, part_ids: Sequence[str], md5: str) -> Body:
        """The Upload with its File; the same one however often it is asked for."""
        body: Body = {"part_ids": list(part_ids), "md5": md5}
        path = f"/v1/uploads/{_segment(upload_id)}/complete"
        return await self.calls.insist("POST", path, body=body, seconds=TRANSFER_SECONDS)

    async def cancel_upload(self, upload_id: str) -> Body:
        """Cancels an Upload; one that is cancelled stays so."""
        return await self.calls.insist("POST", f"/v1/uploads/{_segment(upload_id)}/cancel", body={})

    async def create_batch(self, body: Body, idempotency_key: str) -> Body:
        """A Batch; the same one for the same key."""
        headers = {"Idempotency-Key": idempotency_key}
        return await self.calls.insist("POST", "/v1/batches", headers=headers, body=body)

    async def get_batch(self, batch_id: str) -> Body:
        """A Batch as it is now."""
        return await self.calls.insist("GET", f"/v1/batches/{_segment(batch_id)}")

    async def cancel_batch(self, batch_id: str) -> Body:
        """Cancels a Batch that runs."""
        return await self.calls.insist("POST", f"/v1/batches/{_segment(batch_id)}/cancel", body={})

    def list_batches(self) -> AsyncIterator[Body]:
        """All Batches, newest first, page by page."""
        return self._list("/v1/batches", BATCH_PAGE, "")

    async def _list(self, path: str, limit: int, query: str) -> AsyncIterator[Body]:
        after = ""
        while True:
            url = f"{path}?limit={limit}{query}{after}"
            page = await self.calls.insist("GET", url, member="data")
            for item in page["data"]:
                yield item
            if not page.get("has_more") or not page["data"]:
                return
            after = f"&after={page['data'][-1]['id']}"


def describe_expiry(seconds: int | None) -> dict[str, Any]:
    """`expires_after` of a JSON body; nothing without it."""
    return {"expires_after": _expiry(seconds)} if seconds else {}


def _expiry(seconds: int | None) -> dict[str, Any]:
    return {"anchor": "created_at", "seconds": seconds} if seconds else {}


def _add_bytes(data: aiohttp.FormData, field: str, content: bytes, name: str) -> None:
    # quoted fields would send a name in percent signs, which servers take as it stands
    plain = "".join("_" if unicodedata.category(sign) == "Cc" else sign for sign in name)
    # a view on the bytes: bare ones of this size are warned of
    data.add_field(
        field,
        io.BytesIO(content),
        filename=PurePath(plain).name,
        content_type="application/octet-stream",
    )


def _segment(given: str) -> str:
    return quote(given, safe="")
