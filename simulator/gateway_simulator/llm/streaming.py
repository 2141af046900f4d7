"""Streams over HTTP at the pace and with the faults that were asked for; used by `routes`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from starlette.types import Receive, Scope, Send

from gateway_simulator.faults import hang_up, pause
from gateway_simulator.llm.model import Directives

_FOR_EVER = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Break:
    """A fault of a stream, in the place of the frame at `place`."""

    kind: Literal["error", "drop", "stall", "junk"]
    place: int


def find_break(directives: Directives) -> Break | None:
    """Return the fault that markers ask for."""
    for kind, place in (
        ("error", directives.error),
        ("drop", directives.drop),
        ("stall", directives.stall),
        ("junk", directives.junk),
    ):
        if place is not None:
            return Break(kind, place)  # type: ignore[arg-type]
    return None


class Streamed:
    """An ASGI application that sends frames.

    `error` is the frame of a fault of the kind error; `note` is told whether the caller stayed.
    """

    def __init__(
        self,
        frames: Sequence[bytes],
        media_type: str,
        directives: Directives,
        fault: Break | None,
        error: bytes,
        note: Callable[[bool], None],
    ) -> None:
        self._frames = frames
        self._media_type = media_type
        self._directives = directives
        self._fault = fault
        self._error = error
        self._note = note

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        headers = [(b"content-type", self._media_type.encode()), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        # the server sends the headers with the first body, even an empty one
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        for place, frame in enumerate(self._frames):
            if self._fault is not None and place == self._fault.place:
                await self._break(self._fault, scope, receive, send)
                return
            # a pause of zero notices a caller that left
            wait = self._directives.pause if place else self._directives.first
            if not await pause(receive, wait):
                self._note(False)
                return
            for piece in self._cut(frame):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        self._note(True)

    def _cut(self, frame: bytes) -> Iterator[bytes]:
        size = self._directives.pieces or len(frame)
        for start in range(0, len(frame), max(1, size)):
            yield frame[start : start + size]

    async def _break(self, fault: Break, scope: Scope, receive: Receive, send: Send) -> None:
        match fault.kind:
            case "drop":
                await hang_up(scope, receive)
            case "stall":
                await pause(receive, _FOR_EVER)
                self._note(False)
            case "error" | "junk":
                frame = self._error if fault.kind == "error" else b"data: {not JSON\n\n"
                await send({"type": "http.response.body", "body": frame})
