"""The link of a worker to its parent: a socket pair, on which the worker answers questions.

A question is one line, an answer its length in four bytes and its bytes. The end of the link tells
a worker that its parent has died.
"""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress

import structlog

from gateway_core.concurrency import SingleFlight

READY = "ready"
METRICS = "metrics"
YES = b"1"
NO = b"0"
_SIZE_BYTES = 4

Answers = Mapping[str, Callable[[], Awaitable[bytes]]]
"""What answers each question."""

_log = structlog.get_logger(__name__)


@asynccontextmanager
async def answer_parent(link: socket.socket, answers: Answers) -> AsyncIterator[None]:
    """Answer the parent while the context is entered; SIGTERM to this process if it has died."""
    answering = asyncio.create_task(_answer(link, answers))
    try:
        yield
    finally:
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)


async def _answer(link: socket.socket, answers: Answers) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=link)
    with suppress(ConnectionError):
        while question := await reader.readline():
            body = await answers[question.decode().rstrip()]()
            writer.write(len(body).to_bytes(_SIZE_BYTES) + body)
            await writer.drain()
    _log.warning("the parent has died")
    signal.raise_signal(signal.SIGTERM)


class WorkerLink:
    """The parent's end of the link to one worker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._turn = asyncio.Lock()
        self._flights = SingleFlight[bytes | None]()

    @classmethod
    async def open(cls, link: socket.socket) -> "WorkerLink":
        """The link over this end of a socket pair."""
        return cls(*await asyncio.open_unix_connection(sock=link))

    def close(self) -> None:
        """Close the parent's end."""
        self._writer.close()

    async def ask(self, question: str) -> bytes | None:
        """The worker's answer, however long it takes; None if the worker has died.

        A caller that is cancelled leaves the answer to the next one.
        """
        return await self._flights.run(question, lambda: self._ask(question))

    async def _ask(self, question: str) -> bytes | None:
        async with self._turn:
            try:
                self._writer.write(f"{question}\n".encode())
                size = int.from_bytes(await self._reader.readexactly(_SIZE_BYTES))
                return await self._reader.readexactly(size)
            except (OSError, asyncio.IncompleteReadError):
                return None
