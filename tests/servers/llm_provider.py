"""A scripted provider of LLM calls on a real socket: each request gets the next script."""

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Self

import orjson

from gateway_core.llm.formats.sse import DONE
from tests.fakes.llm_streams import chat_chunks, write_frames


@dataclass(frozen=True)
class Received:
    """One request."""

    target: str
    headers: dict[str, str]
    body: Any


Script = Callable[["Reply", Received], Awaitable[None]]


class Reply:
    """Writes one response, as raw as a script wants it."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def whole(self, document: Any, status: int = 200, **headers: str) -> None:
        body = document if isinstance(document, bytes) else orjson.dumps(document)
        named = {"content-type": "application/json", **headers, "content-length": str(len(body))}
        await self.raw(self._head(status, named) + body)

    async def begin(self, status: int = 200) -> None:
        named = {"content-type": "text/event-stream", "transfer-encoding": "chunked"}
        await self.raw(self._head(status, named))

    async def chunk(self, data: bytes) -> None:
        await self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    async def end(self) -> None:
        await self.raw(b"0\r\n\r\n")

    async def raw(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    def close(self) -> None:
        """End the connection after what was written."""
        self._writer.close()

    def cut(self) -> None:
        self._writer.transport.abort()

    def reset(self) -> None:
        """End the connection by RST."""
        raw = self._writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    @staticmethod
    def _head(status: int, headers: dict[str, str]) -> bytes:
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        return f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode()


class LlmProvider:
    """Serves `scripts` in order, and the last of them from then on."""

    def __init__(self, *scripts: Script) -> None:
        self.scripts = list(scripts)
        self.received: list[Received] = []
        self.open_connections = 0
        self._serving: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open_connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            while request := await _read_request(reader):
                self.received.append(request)
                script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
                working = asyncio.ensure_future(script(Reply(writer), request))
                leaving = asyncio.ensure_future(_wait_left(reader))
                await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
                leaving.cancel()
                if not working.done():
                    working.cancel()
                    return
                await working
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open_connections -= 1
            self._serving.discard(task)
            writer.close()


async def _wait_left(reader: asyncio.StreamReader) -> None:
    """Return at the end of the connection; a client sends nothing before its response is whole."""
    # a read would take the first byte of the next request
    while not reader.at_eof():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def _read_request(reader: asyncio.StreamReader) -> Received | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.strip().split("\r\n")
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    raw = await reader.readexactly(int(headers.get("content-length", "0")))
    return Received(first.split(" ")[1], headers, orjson.loads(raw) if raw else None)


def make_chat_answer(text: str = "Hello", **usage: int) -> dict[str, Any]:
    """A chat completion of the provider's model `up-1`."""
    counts = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15, **usage}
    message = {"role": "assistant", "content": text}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "up-1",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": counts,
    }


def make_chat_chunks(*texts: str) -> list[bytes]:
    """Return the frames of a chat stream, with its usage and [DONE]."""
    *chunks, last = chat_chunks(*texts, model="up-1")
    count = len(texts)
    last["usage"] = {
        "prompt_tokens": 10,
        "completion_tokens": count,
        "total_tokens": 10 + count,
    }
    return [*(write_frames([chunk]) for chunk in (*chunks, last)), DONE]
