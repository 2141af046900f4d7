"""Messages and deltas of chat answers, made regular: providers keep the format loosely.

Texts are strings, and each function call has an index and an id of its own.
"""

import secrets
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway_core.llm.formats.calls import as_object, as_objects, read_index
from gateway_core.llm.formats.output import measure_delta, measure_plain
from gateway_core.llm.formats.provider_json import load_arguments
from gateway_core.llm.formats.thoughts import FIELDS, read_reasoning

OTHER_REASONING = frozenset(
    {"reasoning_details", "reasoning_text", "thinking", "thinking_blocks", "thought"}
)
"""Fields in which providers put the reasoning of a message beside those of `thoughts`."""
_THOUGHTS = ("thinking", "reasoning", "reasoning_text", "summary")
_INNER = ("text", "content", "value", "output_text", "refusal", "parts", *_THOUGHTS)
"""Fields of a part that may have its text."""
_ROLES = (None, "assistant")
_TYPES = (None, "function")
_MOST_DEPTH = 8
"""Levels of parts in parts."""
_CONTINUED = frozenset({"function", "index", "type"})
_ARGUMENTS = frozenset({"arguments"})
_WITH_CALLS = frozenset({"content", "role", "tool_calls"})
"""Fields of a piece that goes on with a call, of its function, and of the delta that has it."""


def read_arguments(arguments: Any, *, is_cut: bool = False) -> dict[str, Any] | None:
    """Return the arguments of a function call, {} for empty ones; None if they cannot be read.

    `is_cut`: the answer was cut off, so that the arguments of an empty call are missing.
    """
    if isinstance(arguments, str):
        if not arguments.strip():
            return None if is_cut else {}
        try:
            arguments = load_arguments(arguments)
        except ValueError:
            return None
    if arguments is None:
        return {}
    return arguments if isinstance(arguments, dict) else None


def mark_unreadable(items: Any) -> None:
    """Make the calls among items of Responses incomplete whose arguments cannot be read."""
    for item in as_objects(items):
        if item.get("type") == "function_call" and read_arguments(item.get("arguments")) is None:
            item["status"] = "incomplete"


def join_parts(content: Any, depth: int = _MOST_DEPTH) -> str:
    """Return the text of a string, a part, or several parts, whatever they are of."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and depth:
        return "".join(join_parts(part, depth - 1) for part in content)
    if isinstance(content, dict) and depth:
        texts = (join_parts(content.get(name), depth - 1) for name in _INNER)
        return next(filter(None, texts), "")
    return ""


def regularize(message: dict[str, Any], calls: "CallPieces") -> None:
    """Make a message or delta regular, in place; `calls` has the pieces of earlier deltas."""
    if message.get("role") not in _ROLES:
        message["role"] = "assistant"
    content = message.get("content")
    if content is None or isinstance(content, str):
        pass
    elif isinstance(content, int | float):
        message["content"] = orjson.dumps(content).decode()
    elif isinstance(content, (list, dict)):
        parts = content if isinstance(content, list) else [content]
        thoughts = [part for part in parts if _is_thought(part)]
        shown = [part for part in parts if not _is_thought(part)]
        message["content"] = join_parts(shown)
        thought = join_parts(thoughts)
        if thought:
            message["reasoning_content"] = join_parts(message.get("reasoning_content")) + thought
        images = [part for part in as_objects(shown) if part.get("type") == "image_url"]
        if images:
            # where other providers have them
            message["images"] = [*as_objects(message.get("images")), *images]
    for name in ("refusal", *FIELDS):
        if name in message and isinstance(message[name], (list, dict)):
            message[name] = join_parts(message[name])
    pieces = message.get("tool_calls")
    if pieces:
        message["tool_calls"] = calls.take([pieces] if isinstance(pieces, dict) else pieces)


def adopt_others(message: dict[str, Any]) -> None:
    """Move what some providers have in fields of their own to the usual ones, in place."""
    if not OTHER_REASONING.isdisjoint(message) and read_reasoning(message) is None:
        texts = filter(None, (join_parts(message.get(name)) for name in OTHER_REASONING))
        text = next(texts, None)
        if text is not None:
            message["reasoning_content"] = text
    # the one call of the format's first version
    if as_object(message.get("function_call")) and not message.get("tool_calls"):
        message["tool_calls"] = [{"index": 0, "function": message.pop("function_call")}]


def _is_thought(part: Any) -> bool:
    kind = as_object(part).get("type")
    is_named = isinstance(kind, str) and kind.startswith(("thinking", "reasoning"))
    return is_named or as_object(part).get("thought") is True


@dataclass(slots=True)
class _Call:
    """A function call of which pieces have come; `given_id` is the provider's, if it has one."""

    index: int
    given_id: str
    name: str = ""
    arguments: list[str] = field(default_factory=list)

    def is_complete(self) -> bool:
        """Return whether its arguments are a whole object: further ones are of another call."""
        # the pieces are joined only where the end of an object is likely
        if not self.arguments or not self.arguments[-1].rstrip().endswith("}"):
            return False
        return read_arguments("".join(self.arguments)) is not None

    def is_repeated_by(self, given_id: str, name: str, text: str) -> bool:
        """Return whether a later piece is the whole call again, as at the end of some streams."""
        is_same = bool(given_id) and (given_id, name) == (self.given_id, self.name)
        return is_same and self.is_complete() and text == "".join(self.arguments)


class DeltaReader:
    """Makes the deltas of a chat stream regular, and measures their output.

    `functions` are the names of those that the model may call. `adopts_others`: it moves what
    providers have in fields of their own to the usual ones.
    """

    def __init__(self, functions: Collection[str] = (), *, adopts_others: bool = False) -> None:
        self._adopts_others = adopts_others
        self._calls: dict[int, CallPieces] = defaultdict(lambda: CallPieces(functions))

    def read(self, choices: list[dict[str, Any]]) -> int:
        """Make the choices of a chunk regular, in place. Return the bytes of their output."""
        size = 0
        for place, choice in enumerate(choices):
            index = choice.get("index")
            if type(index) is not int:
                index = choice["index"] = read_index(choice, place)
            delta = choice.get("delta")
            if not isinstance(delta, dict):
                delta = choice["delta"] = as_object(choice.get("message"))
            length = measure_plain(delta)
            if length is None or (self._adopts_others and not OTHER_REASONING.isdisjoint(delta)):
                continued = self._calls[index].find_continued(delta)
                if continued:
                    size += _continue(continued)
                    continue
                if self._adopts_others:
                    adopt_others(delta)
                regularize(delta, self._calls[index])
                length = measure_delta(delta)
            size += length
        return size

    def read_usual(self, chunks: list[dict[str, Any]]) -> int | None:
        """Return the bytes of the output in chunks of which none needs a change; else None."""
        size = 0
        arguments: list[tuple[_Call, str]] = []
        for chunk in chunks:
            choices = chunk.get("choices")
            if not isinstance(choices, list):
                return None
            for choice in choices:
                index = choice.get("index") if isinstance(choice, dict) else None
                if type(index) is not int:
                    return None
                delta = choice.get("delta")
                length = measure_plain(delta)
                if length is None:
                    continued = self._calls[index].find_continued(delta)
                    if continued is None:
                        return None
                    arguments += continued
                else:
                    size += length
        return size + _continue(arguments)


class CallPieces:
    """Pieces of the function calls of one choice, in turn, as clients can join them.

    Each call has an index of its own, and its first piece an id that no other has. Some providers
    give all calls one index, or no ids; others repeat id and name in each piece, give each piece
    another id, or end with the whole calls. `functions` tell the pieces of a name from two names.
    """

    __slots__ = ("_by_id", "_by_index", "_count", "_functions")

    def __init__(self, functions: Collection[str] = ()) -> None:
        self._count = 0
        self._functions = functions
        self._by_index: dict[int, _Call] = {}
        self._by_id: dict[str, _Call] = {}

    def take(self, pieces: Any) -> list[dict[str, Any]]:
        """Return the pieces of one delta, or the calls of a whole message."""
        touched: set[int] = set()
        return [self._take(piece, place, touched) for place, piece in enumerate(as_objects(pieces))]

    def find_continued(self, delta: Any) -> list[tuple[_Call, str]] | None:
        """Return the calls that a delta goes on with, and the texts; None if it has to change."""
        pieces = delta.get("tool_calls") if isinstance(delta, dict) else None
        if not isinstance(pieces, list) or not delta.keys() <= _WITH_CALLS or delta.get("content"):
            return None
        if delta.get("role") not in _ROLES:
            return None
        continued = []
        for piece in pieces:
            if type(piece) is not dict or not piece.keys() <= _CONTINUED:
                return None
            index, function = piece.get("index"), piece.get("function")
            if type(index) is not int or piece.get("type") not in _TYPES:
                return None
            call = self._by_index.get(index)
            if type(function) is not dict or function.keys() != _ARGUMENTS or call is None:
                return None
            text = function["arguments"]
            if type(text) is not str or call.index != index:
                return None
            continued.append((call, text))
        return continued

    def _take(self, piece: dict[str, Any], place: int, touched: set[int]) -> dict[str, Any]:
        kind = "custom" if isinstance(piece.get("custom"), dict) else "function"
        content = "input" if kind == "custom" else "arguments"
        function = dict(as_object(piece.get(kind)))
        if isinstance(function.get(content), (dict, list)):
            function[content] = orjson.dumps(function[content]).decode()
        name, text = (
            value if isinstance(value, str) else ""
            for value in map(function.get, ("name", content))
        )
        given_id = str(piece.get("id") or "")
        index = read_index(piece, place)
        call = self._by_id.get(given_id) or self._by_index.get(index)
        made = {key: value for key, value in piece.items() if key not in ("id", "type")}
        if (
            call is not None
            and call is self._by_index.get(index)
            and call.index not in touched
            and call.is_repeated_by(given_id, name, text)
        ):
            name = text = function[content] = ""
            function.pop("name", None)
        elif (
            call is None
            or (name and (call.index in touched or index not in self._by_index))
            or self._begins(call, given_id, name, text)
        ):
            is_new = bool(given_id) and given_id not in self._by_id
            call_id = given_id if is_new else f"call_{secrets.token_hex(12)}"
            call = _Call(self._count, given_id)
            self._count += 1
            self._by_id[given_id or call_id] = call
            function[content] = text
            made = {"id": call_id, "type": kind, **made}
        elif name and name.startswith(call.name):
            # SDKs would join it with the first one
            name = function["name"] = name.removeprefix(call.name)
        self._by_index[index] = call
        touched.add(call.index)
        call.name += name
        if text:
            call.arguments.append(text)
        return {**made, "index": call.index, kind: function}

    def _begins(self, call: _Call, given_id: str, name: str, text: str) -> bool:
        """Return whether a piece at the place of `call` is of another one."""
        if not name or not call.name:
            # ids of single pieces begin no call
            return False
        if given_id and call.given_id and given_id != call.given_id:
            return True
        if not call.arguments and self._is_part(call.name, name):
            return False
        if name == call.name:
            return bool(text.strip()) and call.is_complete()
        # a name may come in pieces, before the arguments, from providers that give ids
        return bool(call.arguments) or not call.given_id

    def _is_part(self, begun: str, name: str) -> bool:
        """Return whether `name` goes on with one that has begun, of a function that there is."""
        known = self._functions
        if begun in known and name in known:
            return False
        # some providers repeat what they have sent of it
        joined = name if name.startswith(begun) else begun + name
        return any(each.startswith(joined) for each in known)


def _continue(pieces: list[tuple[_Call, str]]) -> int:
    """Add texts to the arguments of calls. Return their bytes."""
    size = 0
    for call, text in pieces:
        if text:
            call.arguments.append(text)
            size += len(text.encode())
    return size
