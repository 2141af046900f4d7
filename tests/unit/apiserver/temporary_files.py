"""Temporary files on fakes: the API, and the media host that serves them."""

import base64
import hashlib
import time
from typing import Any

from gateway_apiserver.media import MediaParts, create_media_app
from gateway_core.files.addresses import MediaSigner, Sealer, TemporaryAddresses
from tests.unit.apiserver.gateway import ID_KEY, Answer, Gateway, call

PATH = "/api/v1/files"
MEDIA = "https://media.example.com"
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256)) * 40


class Bench:
    """The API, and the media host on the same store."""

    def __init__(self, **settings: Any) -> None:
        self.gateway = Gateway(media_url=f"{MEDIA}/", **settings)
        self.ahead = 0.0
        parts = MediaParts(
            self.gateway.store, MediaSigner(b"m" * 32), TemporaryAddresses(Sealer(ID_KEY))
        )
        self.media = create_media_app(parts, lambda: time.time() + self.ahead)

    async def post(self, body: Any, path: str = PATH, key: str = "", **headers: str) -> Answer:
        """POSTs JSON, or bytes as they are."""
        sent = [(name.replace("_", "-"), value) for name, value in headers.items()]
        return await self.gateway.create(body, key=key or None, path=path, headers=sent)

    async def post_data(self, data: str, **body: Any) -> Answer:
        """Creates a file of base64."""
        return await self.post({"source": {"type": "base64", "data": data}, **body})

    async def create(self, data: bytes = PNG, **body: Any) -> Answer:
        """Creates a file of these bytes."""
        return await self.post_data(base64.b64encode(data).decode(), **body)

    async def read(self, url: str, method: str = "GET", **headers: str) -> Answer:
        """Asks the media host for a file."""
        assert url.startswith(f"{MEDIA}/temporary/")
        path = url.removeprefix(MEDIA)
        return await call(self.media, method, path, headers=list(headers.items()))

    async def ask_to_put(self, data: bytes = PNG, **body: Any) -> Answer:
        """Announces bytes."""
        checksum = base64.b64encode(hashlib.md5(data).digest()).decode()
        wanted = {"filename": "a.png", "byte_size": len(data), "checksum": checksum, **body}
        return await self.post(wanted, PATH + "/prepare")

    async def prepare(self, data: bytes = PNG) -> dict[str, Any]:
        """The address for bytes, and what confirms them."""
        answer = await self.ask_to_put(data)
        assert answer.status == 201, answer.body
        found: dict[str, Any] = answer.json
        return found

    async def put(self, url: str, data: bytes = PNG, length: int | None = None) -> Answer:
        """PUTs bytes; `length` is declared instead of theirs."""
        size = len(data) if length is None else length
        headers = [("Content-Length", str(size))]
        path = url.removeprefix(MEDIA)
        return await call(self.media, "PUT", path, headers=headers, content=data)

    async def confirm(self, signed_id: str, key: str = "") -> Answer:
        """Confirms the bytes that were PUT."""
        return await self.post({"signed_id": signed_id}, PATH + "/confirm", key)

    def list_files(self) -> list[dict[str, Any]]:
        """All GatewayFiles."""
        return self.gateway.kube.list_objects("gatewayfiles")

    async def read_used(self) -> int:
        """Bytes that temporary files of the account hold."""
        return (await self.gateway.storage.read_used("demo", "temporary")).bytes
