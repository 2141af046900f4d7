"""Writers of streams in the client's format: chunks, signs of life (§7.2), and the end."""

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from gateway_core.llm.formats.sse import (
    DONE,
    ErrorForm,
    data_frame,
    event_frame,
    parse_data,
    read_data,
    retry_info,
    split_frames,
)

_BEGINNINGS = frozenset({"response.created", "response.in_progress", "response.queued"})


class Writer(ABC):
    """Writes one stream in the client's format. `count` is the number of the next event."""

    count = 0

    @abstractmethod
    def write(self, chunks: Iterable[dict[str, Any]]) -> bytes:
        """Return the client's bytes for chunks."""

    @abstractmethod
    def close(self) -> bytes:
        """Return what ends a whole stream."""

    @abstractmethod
    def keep_alive(self) -> bytes:
        """Return what may be sent while the provider is silent."""

    @abstractmethod
    def fail(self, form: ErrorForm) -> bytes:
        """Return the last bytes of a stream that fails."""

    def resume(self, held: bytes, early: "Writer") -> bytes:
        """Go on with the stream that `early` began; the frames `held`, written anew."""
        return held


class ChatWriter(Writer):
    """Writer of Chat Completions (§7.2)."""

    def write(self, chunks: Iterable[dict[str, Any]]) -> bytes:
        """Return a frame for each chunk."""
        return b"".join(map(data_frame, chunks))

    def close(self) -> bytes:
        """Return the frame that ends the stream."""
        return DONE

    def keep_alive(self) -> bytes:
        """Return a comment."""
        return b": keep-alive\n\n"

    def fail(self, form: ErrorForm) -> bytes:
        """Return a frame with the error, and no [DONE]."""
        return data_frame({"error": _openai_error(form)})


class GoogleWriter(Writer):
    """Writer of Google's format: server-sent events, or the items of one JSON array (§8.5)."""

    def __init__(self, *, event_stream: bool) -> None:
        self._event_stream = event_stream
        self._separator = b"["

    def write(self, chunks: Iterable[dict[str, Any]]) -> bytes:
        """Return the client's bytes for chunks."""
        return self.write_block(b"".join(map(data_frame, chunks)))

    def write_block(self, block: bytes) -> bytes:
        """Return the client's bytes for frames of data alone."""
        if self._event_stream or not block:
            return block
        chunks = block[len(b"data: ") : -2].replace(b"}\n\ndata: {", b"},\n{")
        separator, self._separator = self._separator, b",\n"
        return separator + chunks

    def close(self) -> bytes:
        """Return the frame that ends the client's stream."""
        if self._event_stream:
            return b""
        return b"[]" if self._separator == b"[" else b"]"

    def keep_alive(self) -> bytes:
        """Return an empty line between events, as Google's clients fail at comments.

        Return no bytes in an array.
        """
        return b"\n" if self._event_stream else b""

    def fail(self, form: ErrorForm) -> bytes:
        """Return a last chunk with the error (§8.6)."""
        error: dict[str, Any] = {
            "code": form.status,
            "message": form.message,
            "status": form.google_status,
        }
        if form.retry_after is not None:
            error["details"] = [retry_info(form.retry_after)]
        return self.write([{"error": error}]) + self.close()


class ResponsesWriter(Writer):
    """Writer of Responses (§7.3): numbers events from 0 without gaps.

    Some clients do not count comments as life, so keep-alives are events. One that comes before
    the provider's first event begins the response. All events name the response by its first id.
    `created` is the time of the call in Unix seconds. `count` is the number of the next event.
    """

    def __init__(self, model_id: str, created: int) -> None:
        self.count = 0
        self._model_id = model_id
        self._created = created
        self._is_early = False
        """Return whether it began without the provider."""

    @cached_property
    def _response(self) -> dict[str, Any]:
        """The response as the last event had it; streams of other formats have none."""
        return begin_response(self._model_id, self._created)

    def note(self, response: dict[str, Any]) -> None:
        """Give the response of an event the id that the client knows, in place, and keep it."""
        if self.count > 0:
            response["id"] = self._response["id"]
        self._response |= response

    def write(self, chunks: Iterable[dict[str, Any]]) -> bytes:
        """Return the frames of events."""
        return b"".join(map(self.write_event, chunks))

    def write_event(self, event: dict[str, Any]) -> bytes:
        """Return the frame of an event; none if the response has begun without it."""
        response = event.get("response")
        if isinstance(response, dict):
            self.note(response)
        if self._is_early and event.get("type") in _BEGINNINGS:
            return b""
        return self._number(event)

    def close(self) -> bytes:
        """Return nothing: the last event ends the stream."""
        return b""

    def keep_alive(self) -> bytes:
        """Return what tells a client that the response is in progress."""
        shown = self._response | {"status": "in_progress", "output": []}
        sent = b""
        if self.count == 0:
            sent = self._number({"type": "response.created", "response": shown})
            self._is_early = True
        return sent + self._number({"type": "response.in_progress", "response": shown})

    def resume(self, held: bytes, early: Writer) -> bytes:
        """Go on with the response that `early` began; the frames `held`, written anew."""
        assert isinstance(early, ResponsesWriter)
        self.count, self._is_early = early.count, True
        self._response["id"] = early._response["id"]
        frames = split_frames(held)
        return b"".join(self.write_event(parse_data(read_data(frame))) for frame in frames)

    def fail(self, form: ErrorForm) -> bytes:
        """Return the events that end a failed response, for all kinds of readers (§7.3)."""
        sent = b""
        if self.count == 0:
            # no stream begins without it
            sent = self._number({"type": "response.created", "response": self._response})
        error = {"type": "error", "code": form.code, "message": form.message, "param": None}
        sent += self._number(error | {"error": _openai_error(form)})
        reason = {"code": form.response_code, "message": form.message}
        failed = self._response | {"status": "failed", "error": reason}
        return sent + self._number({"type": "response.failed", "response": failed})

    def _number(self, event: dict[str, Any]) -> bytes:
        event["sequence_number"] = self.count
        # it may be nested too deeply
        frame = event_frame(event)
        self.count += 1
        return frame


def begin_response(model_id: str, created: int) -> dict[str, Any]:
    """Return a Responses object without output, at the time `created` in Unix seconds."""
    return {
        "id": f"resp_{secrets.token_hex(24)}",
        "object": "response",
        "created_at": created,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": model_id,
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None,
    }


def _openai_error(form: ErrorForm) -> dict[str, Any]:
    return {
        "message": form.message,
        "type": form.openai_type,
        "param": None,
        "code": form.code,
    }
