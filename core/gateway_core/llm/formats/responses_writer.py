"""Events of one Responses stream for the client: their numbers, and its signs of life (§7.3)."""

from functools import cached_property
from typing import Any

from gateway_core.llm.formats.sse import (
    ErrorForm,
    begin_response,
    event_frame,
    parse_data,
    read_data,
    responses_failure,
    split_frames,
)

_BEGINNINGS = frozenset({"response.created", "response.in_progress", "response.queued"})


class ResponsesWriter:
    """Numbers events from 0 without gaps, and shows that a silent provider is at work.

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

    def write(self, event: dict[str, Any]) -> bytes:
        """Return the frame of an event; none if the response has begun without it."""
        response = event.get("response")
        if isinstance(response, dict):
            self.note(response)
        if self._is_early and event.get("type") in _BEGINNINGS:
            return b""
        return self._number(event)

    def keep_alive(self) -> bytes:
        """Return what tells a client that the response is in progress."""
        shown = self._response | {"status": "in_progress", "output": []}
        sent = b""
        if self.count == 0:
            sent = self._number({"type": "response.created", "response": shown})
            self._is_early = True
        return sent + self._number({"type": "response.in_progress", "response": shown})

    def resume(self, held: bytes, early: "ResponsesWriter") -> bytes:
        """Go on with the response that `early` began; the frames `held`, written anew."""
        self.count, self._is_early = early.count, True
        self._response["id"] = early._response["id"]
        frames = split_frames(held)
        return b"".join(self.write(parse_data(read_data(frame))) for frame in frames)

    def fail(self, form: ErrorForm, response: dict[str, Any] | None = None) -> bytes:
        """Return the events that end a failed response; `response` as far as it has come."""
        if response is not None:
            self.note(response)
        return b"".join(map(event_frame, responses_failure(form, self._response, self.count)))

    def _number(self, event: dict[str, Any]) -> bytes:
        event["sequence_number"] = self.count
        # it may be nested too deeply
        frame = event_frame(event)
        self.count += 1
        return frame
