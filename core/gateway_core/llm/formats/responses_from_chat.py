"""Chat completions and chat streams as Responses objects and their events (contract §7.3)."""

import secrets
from collections.abc import Mapping
from typing import Any

from gateway_core.llm.formats.calls import (
    InvalidAnswer,
    TokenUsage,
    as_object,
    as_objects,
    read_index,
)
from gateway_core.llm.formats.reasons import to_response_end
from gateway_core.llm.formats.sse import begin_response
from gateway_core.llm.formats.translated import ChunkTranslator, begins_call
from gateway_core.llm.formats.usage import read_chat_usage, to_responses_usage

_ECHOED: dict[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "reasoning": {"effort": None, "summary": None},
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
    "truncation": "disabled",
    "user": None,
}
"""Fields of a request that its response repeats, and their values where it has none."""

Item = dict[str, Any]


def to_response(
    document: Mapping[str, Any], body: Mapping[str, Any], model_id: str, created: int
) -> dict[str, Any]:
    """The Responses object of a chat completion, for the client's `body`.

    InvalidAnswer if the document is of another kind.
    """
    choices = as_objects(document.get("choices"))
    if not choices:
        raise InvalidAnswer("The answer has no choices.")
    message = as_object(choices[0].get("message"))
    response = _begin(body, model_id, created)
    text, refusal = message.get("content"), message.get("refusal")
    calls = as_objects(message.get("tool_calls"))
    if isinstance(refusal, str) and refusal:
        response["output"].append(_make_message({"type": "refusal", "refusal": refusal}))
    elif (isinstance(text, str) and text) or not calls:
        response["output"].append(_make_message(_make_text(text if isinstance(text, str) else "")))
    for call in calls:
        function = as_object(call.get("function"))
        item = _make_call(call.get("id"), function.get("name"))
        item |= {"arguments": function.get("arguments") or "", "status": "completed"}
        response["output"].append(item)
    usage = read_chat_usage(document.get("usage"))
    return _finish(response, choices[0].get("finish_reason"), usage)


class ResponsesFromChat(ChunkTranslator):
    """Events of a Responses stream from the chunks of a chat stream, without sequence numbers.

    The message ends where the first function call begins; function calls, whose pieces may
    alternate, end with the stream.
    """

    def __init__(self, body: Mapping[str, Any], model_id: str, created: int) -> None:
        self._response = _begin(body, model_id, created)
        self._begun = False
        self._reason: Any = None
        self._items: list[Item] = []
        self._message: int | None = None
        """Place of the message that is being written."""
        self._texts: list[str] = []
        """Its pieces so far: joined once, as they may be many."""
        self._calls: dict[int, int] = {}
        """Places of the last function calls, by their index in chat."""
        self._arguments: dict[int, list[str]] = {}
        """Pieces of the arguments of function calls, by their place."""

    def translate(self, chunk: dict[str, Any]) -> list[dict[str, Any]]:
        """The events that a chunk becomes."""
        events = self._begin_once()
        for choice in as_objects(chunk.get("choices"))[:1]:
            delta = as_object(choice.get("delta"))
            for name, kind in (("content", "output_text"), ("refusal", "refusal")):
                text = delta.get(name)
                if isinstance(text, str) and text:
                    events += self._add_text(text, kind)
            for place, piece in enumerate(as_objects(delta.get("tool_calls"))):
                events += self._add_call(read_index(piece, place), piece)
            self._reason = choice.get("finish_reason") or self._reason
        return events

    def end(self, usage: TokenUsage | None) -> list[dict[str, Any]]:
        """The events that end open items, and the one with the whole response."""
        events = self._begin_once()
        if not self._items:
            events += self._open_message("output_text")
        events += self._close_message()
        for place, arguments in self._arguments.items():
            item = self._items[place]
            item["arguments"] = "".join(arguments)
            item["status"] = "completed"
            names = {name: item[name] for name in ("arguments", "name")}
            events += [
                _event("response.function_call_arguments.done", place, item) | names,
                _item_event("response.output_item.done", place, item),
            ]
        self._response["output"] = self._items
        response = _finish(self._response, self._reason, usage)
        return [*events, {"type": f"response.{response['status']}", "response": response}]

    def show_response(self) -> dict[str, Any]:
        """Return the Responses object as far as it has come, with its open items as incomplete."""
        if self._message is not None:
            part = self._items[self._message]["content"][0]
            part["refusal" if part["type"] == "refusal" else "text"] = "".join(self._texts)
        for place, arguments in self._arguments.items():
            self._items[place]["arguments"] = "".join(arguments)
        output = [
            item | {"status": "incomplete"} if item["status"] == "in_progress" else item
            for item in self._items
        ]
        return self._response | {"output": output}

    def _begin_once(self) -> list[dict[str, Any]]:
        if self._begun:
            return []
        self._begun = True
        shown = self._response | {"output": []}
        return [
            {"type": "response.created", "response": shown},
            {"type": "response.in_progress", "response": dict(shown)},
        ]

    def _add_text(self, text: str, kind: str) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        if self._message is None or self._items[self._message]["content"][0]["type"] != kind:
            events += self._close_message()
            events += self._open_message(kind)
        place = len(self._items) - 1 if self._message is None else self._message
        item = self._items[place]
        self._texts.append(text)
        delta = _event(f"response.{kind}.delta", place, item) | {
            "content_index": 0,
            "delta": text,
        }
        return [*events, delta | ({"logprobs": []} if kind == "output_text" else {})]

    def _open_message(self, kind: str) -> list[dict[str, Any]]:
        part = {"type": kind, "refusal": ""} if kind == "refusal" else _make_text("")
        item = _make_message(part) | {"status": "in_progress"}
        self._message = place = len(self._items)
        self._texts = []
        self._items.append(item)
        return [
            _item_event("response.output_item.added", place, item | {"content": []}),
            _event("response.content_part.added", place, item)
            | {"content_index": 0, "part": dict(part)},
        ]

    def _close_message(self) -> list[dict[str, Any]]:
        if self._message is None:
            return []
        place, self._message = self._message, None
        item = self._items[place]
        item["status"] = "completed"
        part = item["content"][0]
        name = "refusal" if part["type"] == "refusal" else "text"
        part[name] = "".join(self._texts)
        done = _event(f"response.{part['type']}.done", place, item) | {
            "content_index": 0,
            name: part[name],
        }
        return [
            done | ({"logprobs": []} if name == "text" else {}),
            _event("response.content_part.done", place, item) | {"content_index": 0, "part": part},
            _item_event("response.output_item.done", place, item),
        ]

    def _add_call(self, index: int, piece: Mapping[str, Any]) -> list[dict[str, Any]]:
        function = as_object(piece.get("function"))
        events: list[dict[str, Any]] = []
        place = self._calls.get(index)
        if place is None or begins_call(piece, self._items[place]["call_id"]):
            events += self._close_message()
            place = self._calls[index] = len(self._items)
            self._arguments[place] = []
            self._items.append(_make_call(piece.get("id"), function.get("name")))
            events.append(
                _item_event("response.output_item.added", place, dict(self._items[place]))
            )
        item = self._items[place]
        arguments = function.get("arguments")
        if isinstance(arguments, str) and arguments:
            self._arguments[place].append(arguments)
            delta = _event("response.function_call_arguments.delta", place, item)
            events.append(delta | {"delta": arguments})
        return events


def _begin(body: Mapping[str, Any], model_id: str, created: int) -> dict[str, Any]:
    """The response as it is when its stream begins."""
    echoed = {
        name: default if body.get(name) is None else body[name] for name, default in _ECHOED.items()
    }
    response = begin_response(model_id, created)
    return response | {"previous_response_id": None, "store": False} | echoed


def _finish(response: dict[str, Any], reason: Any, usage: TokenUsage | None) -> dict[str, Any]:
    """The whole response, after the finish reason of chat."""
    response["status"], response["incomplete_details"] = to_response_end(reason)
    response["usage"] = None if usage is None else to_responses_usage(usage)
    return response


def _make_text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _make_message(part: dict[str, Any]) -> Item:
    return {
        "id": f"msg_{secrets.token_hex(24)}",
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": [part],
    }


def _make_call(call_id: Any, name: Any) -> Item:
    return {
        "id": f"fc_{secrets.token_hex(24)}",
        "type": "function_call",
        "status": "in_progress",
        "call_id": str(call_id or f"call_{secrets.token_hex(12)}"),
        "name": str(name or ""),
        "arguments": "",
    }


def _event(kind: str, place: int, item: Mapping[str, Any]) -> dict[str, Any]:
    """An event about the inside of an item."""
    return {"type": kind, "item_id": item["id"], "output_index": place}


def _item_event(kind: str, place: int, item: Item) -> dict[str, Any]:
    return {"type": kind, "output_index": place, "item": item}
