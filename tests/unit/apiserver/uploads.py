"""A client of `/v1/uploads` on the fakes, for the tests of this folder."""

import time
from typing import Any

import orjson

from gateway_core.api.ids import id_to_name
from tests.unit.apiserver.gateway import Answer, Gateway, call

BOUNDARY = "0f1e2d"


def write_form(data: bytes, *, field: str = "data", filename: str | None = "blob") -> bytes:
    """A multipart form of one part."""
    name = "" if filename is None else f'; filename="{filename}"'
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{field}"{name}\r\n\r\n'
    return head.encode() + data + f"\r\n--{BOUNDARY}--\r\n".encode()


class Uploader:
    """Calls of one key. The clock is `gateway`'s."""

    def __init__(self, gateway: Gateway, key: str | None = None) -> None:
        self.gateway = gateway
        self.key = key or gateway.key

    async def post(
        self,
        path: str,
        content: bytes = b"",
        content_type: str | None = None,
        headers: list[tuple[str, str]] | None = None,
        chunks: list[bytes] | None = None,
    ) -> Answer:
        """POSTs below `/v1/uploads`."""
        sent = [("Authorization", f"Bearer {self.key}"), *(headers or [])]
        if content_type is not None:
            sent.append(("Content-Type", content_type))
        if content:
            sent.append(("Content-Length", str(len(content))))
        return await call(
            self.gateway.app,
            "POST",
            f"/v1/uploads{path}",
            headers=sent,
            content=content,
            chunks=chunks,
        )

    async def post_json(self, path: str, body: Any, **options: Any) -> Answer:
        """POSTs JSON."""
        return await self.post(path, orjson.dumps(body), "application/json", **options)

    async def create(self, size: int = 6, *, key: str | None = None, **changes: Any) -> Answer:
        """Creates an Upload; `...` leaves a field out."""
        body = {
            "bytes": size,
            "filename": "a.bin",
            "mime_type": "application/x",
            "purpose": "user_data",
            **changes,
        }
        headers = [] if key is None else [("Idempotency-Key", key)]
        kept = {name: value for name, value in body.items() if value is not ...}
        return await self.post_json("", kept, headers=headers)

    async def open(self, size: int = 6, **changes: Any) -> str:
        """The id of a new Upload."""
        answer = await self.create(size, **changes)
        assert answer.status == 200, answer.body
        return str(answer.json["id"])

    async def send(self, upload: str, data: bytes, **form: Any) -> Answer:
        """Sends a part."""
        kind = f"multipart/form-data; boundary={BOUNDARY}"
        return await self.post(f"/{upload}/parts", write_form(data, **form), kind)

    async def add(self, upload: str, data: bytes) -> str:
        """The id of a part that was taken."""
        answer = await self.send(upload, data)
        assert answer.status == 200, answer.body
        return str(answer.json["id"])

    async def complete(self, upload: str, *part_ids: str, **body: Any) -> Answer:
        """Completes."""
        return await self.post_json(f"/{upload}/complete", {"part_ids": list(part_ids), **body})

    async def cancel(self, upload: str) -> Answer:
        """Cancels."""
        return await self.post(f"/{upload}/cancel")

    def find(self, upload: str) -> dict[str, Any]:
        """The Upload's object."""
        found = self.gateway.kube.find("gatewayuploads", id_to_name(upload))
        assert found is not None
        return found

    def pass_hour(self) -> None:
        """Has the clock be an hour further."""
        self.gateway.clock = lambda: time.time() + 3601

    def list_files(self) -> list[dict[str, Any]]:
        """All GatewayFiles."""
        return self.gateway.kube.list_objects("gatewayfiles")

    async def read_used(self, account: str = "demo") -> int:
        """Bytes that the account's storage holds."""
        return (await self.gateway.storage.read_used(account, "files")).bytes

    def read_file(self, file: dict[str, Any]) -> bytes:
        """The bytes of a GatewayFile."""
        segments = file["spec"]["request"]["segments"]
        return b"".join(self.gateway.store.contents[segment["key"]] for segment in segments)
