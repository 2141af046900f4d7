"""Files on the gateway of fakes: forms, and the calls of `/v1/files`."""

from collections.abc import Sequence
from typing import Any

from gateway_core.redis.link import CountersStale
from tests.unit.apiserver.gateway import Answer, Gateway, call

BOUNDARY = "b0undary"
FILES = "/v1/files"


def part(name: str, value: bytes | str, *head: str, filename: str | None = None) -> bytes:
    """One part of a form; `head` are further header lines."""
    disposition = f'Content-Disposition: form-data; name="{name}"'
    if filename is not None:
        disposition += f'; filename="{filename}"'
    lines = "\r\n".join((disposition, *head))
    content = value.encode() if isinstance(value, str) else value
    return f"--{BOUNDARY}\r\n{lines}\r\n\r\n".encode() + content + b"\r\n"


def end() -> bytes:
    """What a form ends with."""
    return f"--{BOUNDARY}--\r\n".encode()


def form(
    content: bytes = b"hello", purpose: str = "user_data", filename: str = "a.txt", **more: str
) -> bytes:
    """A form as the OpenAI SDK writes it; `anchor` and `seconds` say how long the file lives."""
    fields = [part("purpose", purpose)]
    fields += [part(f"expires_after[{name}]", value) for name, value in more.items()]
    return b"".join((*fields, part("file", content, filename=filename), end()))


class Cabinet:
    """The files of one account, by its key."""

    def __init__(self, gateway: Gateway, key: str | None = None) -> None:
        self.gateway = gateway
        self.key = gateway.key if key is None else key

    async def ask(
        self,
        method: str,
        path: str,
        content: bytes = b"",
        *headers: tuple[str, str],
        query: str = "",
        chunks: list[bytes] | None = None,
        breaks_off: bool = False,
    ) -> Answer:
        """One call."""
        sent = [("Authorization", f"Bearer {self.key}"), *headers]
        return await call(
            self.gateway.app,
            method,
            path,
            headers=sent,
            content=content,
            query=query,
            chunks=chunks,
            breaks_off=breaks_off,
        )

    async def send(self, body: bytes, *, chunks: Sequence[bytes] | None = None) -> Answer:
        """POSTs a form."""
        kind = ("Content-Type", f"multipart/form-data; boundary={BOUNDARY}")
        length = ("Content-Length", str(len(body)))
        pieces = None if chunks is None else list(chunks)
        return await self.ask("POST", FILES, body, kind, length, chunks=pieces)

    async def make(self, content: bytes = b"hello", **options: str) -> dict[str, Any]:
        """A new file."""
        answer = await self.send(form(content, **options))
        assert answer.status == 200, answer.body
        made: dict[str, Any] = answer.json
        return made

    async def list(self, query: str = "") -> list[str]:
        """The ids of one page."""
        answer = await self.ask("GET", FILES, query=query)
        assert answer.status == 200, answer.body
        return [file["id"] for file in answer.json["data"]]

    async def count_traces(self) -> tuple[int, int, int]:
        """Objects in the store, bytes claimed, and GatewayFiles."""
        objects = self.gateway.kube.list_objects("gatewayfiles")
        return len(self.gateway.store.contents), await self.read_used(), len(objects)

    async def read_used(self, account: str = "demo") -> int:
        """Bytes that are claimed."""
        try:
            return (await self.gateway.storage.read_used(account, "files")).bytes
        except CountersStale:
            return 0
