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
from gateway_core.llm.formats.client_tools import ClientTools, end_call
from gateway_core.llm.formats.media import list_images, read_data_url
from gateway_core.llm.formats.reasons import is_cut_by, to_response_end
from gateway_core.llm.formats.thoughts import Thoughts, join_details, read_reasoning
from gateway_core.llm.formats.translated import ChunkTranslator
from gateway_core.llm.formats.usage import read_chat_usage, to_responses_usage
from gateway_core.llm.formats.writers import begin_response

ECHOED: dict[str, Any] = {
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
_SUMMARY = "summary_text"
"""The type of the part that has reasoning: the one that clients show."""

Item = dict[str, Any]


def to_response(
    document: Mapping[str, Any],
    body: Mapping[str, Any],
    model_id: str,
    created: int,
    tools: ClientTools,
    *,
    keeps_field: bool,
) -> dict[str, Any]:
    """Return the Responses object of a chat completion, for the client's `body` with `tools`.

    `keeps_field`: the provider speaks chat, and gets its reasoning back. InvalidAnswer if the
    document is of another kind.
    """
    choices = as_objects(document.get("choices"))
    if not choices:
        raise InvalidAnswer("The answer has no choices.")
    # the events of a stream make the same items, from the message as a single delta
    stream = ResponsesFromChat(body, model_id, created, tools, keeps_field=keeps_field)
    message = as_object(choices[0].get("message"))
    choice = {"delta": message, "finish_reason": choices[0].get("finish_reason")}
    stream.translate({"choices": [choice]})
    *_, last = stream.end(read_chat_usage(document.get("usage")))
    return dict(last["response"])


class ResponsesFromChat(ChunkTranslator):
    """Events of a Responses stream from the chunks of a chat stream, without sequence numbers.

    Reasoning and the message end where the other or a function call begins; function calls, whose
    pieces may alternate, end with the stream.
    """

    def __init__(
        self,
        body: Mapping[str, Any],
        model_id: str,
        created: int,
        tools: ClientTools,
        *,
        keeps_field: bool,
    ) -> None:
        self._response = _begin(body, model_id, created)
        self._tools = tools
        self._keeps_field = keeps_field
        self._begun = False
        self._reason: Any = None
        self._items: list[Item] = []
        self._message: int | None = None
        """Place of the message, or of the reasoning, that is being written."""
        self._kind = ""
        """The type of its part."""
        self._texts: list[str] = []
        """Its pieces so far: joined once, as they may be many."""
        self._delta: Item = {}
        """The event of a piece, but for the text."""
        self._field: str | None = None
        """The field of chat that had the last reasoning."""
        self._details: list[dict[str, Any]] = []
        """`reasoning_details` that no item has yet."""
        self._calls: dict[int, int] = {}
        """Places of function calls, by their index in chat."""
        self._arguments: dict[int, list[str]] = {}
        """Pieces of the arguments of function calls, by their place."""
        self._names: dict[int, str] = {}
        """Names of functions in chat so far, by the place of their calls."""

    def translate(self, chunk: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the events that a chunk becomes."""
        events = [] if self._begun else self._begin_once()
        for choice in as_objects(chunk.get("choices"))[:1]:
            delta = as_object(choice.get("delta"))
            if "reasoning_details" in delta:
                join_details(self._details, delta)
            reasoning = read_reasoning(delta)
            if reasoning is not None:
                self._field = reasoning[0]
                events += self._add_text(reasoning[1], _SUMMARY)
            for name, kind in (("content", "output_text"), ("refusal", "refusal")):
                text = delta.get(name)
                if text and isinstance(text, str):
                    events += self._add_text(text, kind)
            for url in list_images(delta):
                events += self._add_image(url)
            if delta.get("tool_calls"):
                for place, piece in enumerate(as_objects(delta["tool_calls"])):
                    events += self._add_call(read_index(piece, place), piece)
            self._reason = choice.get("finish_reason") or self._reason
        return events

    def end(self, usage: TokenUsage | None) -> list[dict[str, Any]]:
        """Return the events that end open items, and the one with the whole response."""
        events = self._begin_once()
        if not self._items:
            events += self._open_message("output_text")
        events += self._close_message()
        for place, pieces in self._arguments.items():
            item, arguments = self._items[place], "".join(pieces)
            end_call(item, arguments, is_cut=is_cut_by(self._reason))
            events += _end_call_events(place, item)
        self._response["output"] = self._items
        response = _finish(self._response, self._reason, usage)
        return [*events, {"type": f"response.{response['status']}", "response": response}]

    def show_response(self) -> dict[str, Any]:
        """Return the Responses object as far as it has come, with its open items as incomplete."""
        if self._message is not None:
            part = _get_part(self._items[self._message])
            part["refusal" if part["type"] == "refusal" else "text"] = "".join(self._texts)
        for place, pieces in self._arguments.items():
            end_call(self._items[place], "".join(pieces))
            self._items[place]["status"] = "incomplete"
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
        if self._message is None or self._kind != kind:
            events += self._close_message()
            events += self._open_message(kind)
        self._texts.append(text)
        return [*events, {**self._delta, "delta": text}]

    def _add_image(self, url: str) -> list[dict[str, Any]]:
        read = read_data_url(url)
        if read is None:
            # an item has bytes alone
            return self._add_text(f"![]({url})", "output_text")
        events = self._close_message()
        place = len(self._items)
        item: Item = {
            "id": f"ig_{secrets.token_hex(24)}",
            "type": "image_generation_call",
            "status": "in_progress",
            "result": None,
        }
        events.append(_item_event("response.output_item.added", place, dict(item)))
        events.append(_event("response.image_generation_call.completed", place, item))
        kind, data = read
        # the last event has all of them again
        self.kept_bytes += len(data)
        item |= {
            "status": "completed",
            "result": data,
            "output_format": kind.removeprefix("image/"),
        }
        self._items.append(item)
        return [*events, _item_event("response.output_item.done", place, item)]

    def _open_message(self, kind: str) -> list[dict[str, Any]]:
        make = _make_reasoning if kind == _SUMMARY else _make_message
        item = make(_make_part(kind))
        self._message = place = len(self._items)
        self._kind, self._texts = kind, []
        self._items.append(item)
        self._delta = _text_event("delta", place, item)
        holder = "summary" if kind == _SUMMARY else "content"
        return [
            _item_event("response.output_item.added", place, item | {holder: []}),
            _part_event("added", place, item, _make_part(kind)),
        ]

    def _close_message(
        self, extra: Mapping[str, Any] | None = None, *, is_before_call: bool = False
    ) -> list[dict[str, Any]]:
        """End what is being written; `extra` belongs to the call that follows."""
        events: list[dict[str, Any]] = []
        is_reasoning = False
        if self._message is not None:
            place, self._message = self._message, None
            item = self._items[place]
            is_reasoning = item["type"] == "reasoning"
            item["status"] = "completed"
            part = _get_part(item)
            name = "refusal" if part["type"] == "refusal" else "text"
            part[name] = "".join(self._texts)
            events += [
                _text_event("done", place, item) | {name: part[name]},
                _part_event("done", place, item, part),
            ]
            if is_reasoning:
                item["encrypted_content"] = self._seal(extra)
            events.append(_item_event("response.output_item.done", place, item))
        if (extra is not None or (is_before_call and self._details)) and not is_reasoning:
            place, item = len(self._items), _make_reasoning(None)
            self._items.append(item)
            events.append(_item_event("response.output_item.added", place, dict(item)))
            item |= {"encrypted_content": self._seal(extra), "status": "completed"}
            events.append(_item_event("response.output_item.done", place, item))
        return events

    def _seal(self, extra: Mapping[str, Any] | None) -> str:
        details, self._details = self._details, []
        return Thoughts(self._field if self._keeps_field else None, extra, details).seal()

    def _add_call(self, index: int, piece: Mapping[str, Any]) -> list[dict[str, Any]]:
        function = as_object(piece.get("function"))
        events: list[dict[str, Any]] = []
        place = self._calls.get(index)
        if place is None:
            events += self._close_message(
                as_object(piece.get("extra_content")) or None, is_before_call=True
            )
            place = self._calls[index] = len(self._items)
            self._arguments[place] = []
            self._names[place] = str(function.get("name") or "")
            item = self._tools.find(function.get("name")).begin_call(piece.get("id"))
            self._items.append(item)
            events.append(_item_event("response.output_item.added", place, dict(item)))
        elif function.get("name"):
            # a name may come in pieces: the whole one says which tool it is
            self._names[place] += function["name"]
            begun = self._items[place]
            item = self._tools.find(self._names[place]).begin_call(begun["call_id"])
            self._items[place] = item | {"id": begun["id"]}
        item = self._items[place]
        arguments = function.get("arguments")
        if isinstance(arguments, str) and arguments:
            self._arguments[place].append(arguments)
            if item["type"] == "function_call":
                delta = _event("response.function_call_arguments.delta", place, item)
                delta["delta"] = arguments
                events.append(delta)
        return events


def _begin(body: Mapping[str, Any], model_id: str, created: int) -> dict[str, Any]:
    """Return the response as it is when its stream begins."""
    echoed = {
        name: default if body.get(name) is None else body[name] for name, default in ECHOED.items()
    }
    response = begin_response(model_id, created)
    return response | {"previous_response_id": None, "store": False} | echoed


def _finish(response: dict[str, Any], reason: Any, usage: TokenUsage | None) -> dict[str, Any]:
    """Return the whole response, after the finish reason of chat."""
    response["status"], response["incomplete_details"] = to_response_end(reason)
    response["usage"] = None if usage is None else to_responses_usage(usage)
    return response


def _make_part(kind: str) -> dict[str, Any]:
    match kind:
        case "output_text":
            return {"type": kind, "text": "", "annotations": [], "logprobs": []}
        case "refusal":
            return {"type": kind, "refusal": ""}
        case _:
            return {"type": kind, "text": ""}


def _make_message(part: dict[str, Any]) -> Item:
    return {
        "id": f"msg_{secrets.token_hex(24)}",
        "type": "message",
        "status": "in_progress",
        "role": "assistant",
        "content": [part],
    }


def _make_reasoning(part: dict[str, Any] | None) -> Item:
    return {
        "id": f"rs_{secrets.token_hex(24)}",
        "type": "reasoning",
        "status": "in_progress",
        "summary": [] if part is None else [part],
    }


def _get_part(item: Item) -> dict[str, Any]:
    """Return the one part of a message or of reasoning."""
    [part] = item["summary"] if item["type"] == "reasoning" else item["content"]
    assert isinstance(part, dict)
    return part


def _text_event(step: str, place: int, item: Item) -> dict[str, Any]:
    """Return an event about the text of a message or of reasoning: `delta` or `done`."""
    kind = _get_part(item)["type"]
    name = "reasoning_summary_text" if kind == _SUMMARY else kind
    event = _event(f"response.{name}.{step}", place, item) | _index(kind)
    return event | {"logprobs": []} if kind == "output_text" else event


def _part_event(step: str, place: int, item: Item, part: dict[str, Any]) -> dict[str, Any]:
    """Return an event about the part of a message or of reasoning: `added` or `done`."""
    name = "reasoning_summary_part" if part["type"] == _SUMMARY else "content_part"
    event = _event(f"response.{name}.{step}", place, item) | _index(part["type"])
    return event | {"part": part}


def _index(kind: str) -> dict[str, int]:
    return {"summary_index" if kind == _SUMMARY else "content_index": 0}


def _end_call_events(place: int, item: Item) -> list[dict[str, Any]]:
    """Return the events that end a call, whose item is whole."""
    events = []
    match item["type"]:
        case "function_call":
            names = {name: item[name] for name in ("arguments", "name")}
            events.append(_event("response.function_call_arguments.done", place, item) | names)
        case "custom_tool_call":
            kind = "response.custom_tool_call_input"
            # its pieces are JSON, of which the text is read once it is whole
            events.append(_event(f"{kind}.delta", place, item) | {"delta": item["input"]})
            events.append(_event(f"{kind}.done", place, item) | {"input": item["input"]})
    return [*events, _item_event("response.output_item.done", place, item)]


def _event(kind: str, place: int, item: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event about the inside of an item."""
    return {"type": kind, "item_id": item["id"], "output_index": place}


def _item_event(kind: str, place: int, item: Item) -> dict[str, Any]:
    return {"type": kind, "output_index": place, "item": item}
