"""What the simulated language model writes, whatever the format; used by `routes`.

The answer repeats the prompt, is a function call, or is JSON of a wanted schema. Markers in the
prompt or in the model's name, such as `[[words=64]]`, ask for something else.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import orjson

IMAGE_TOKENS = 85
MOST_WORDS = 100_000
_MARKER = re.compile(r"\[\[(\w+)=([\w.]+)\]\]")
_WORD = re.compile(r"\s*\S+\s*")
_FILLING = ("The", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "again,")


@dataclass(frozen=True, slots=True)
class Directives:
    """What markers ask for; times in seconds, places in chunks of the stream."""

    words: int | None = None
    """Length of the answer."""
    first: float = 0.0
    """Wait before the first chunk, or before an answer that is no stream."""
    pause: float = 0.0
    """Wait between chunks."""
    pieces: int | None = None
    """Bytes that are written at once: frames are cut anywhere."""
    status: int | None = None
    """Error status instead of an answer."""
    error: int | None = None
    """Place of an error frame, which ends the stream."""
    drop: int | None = None
    """Place where the connection closes."""
    stall: int | None = None
    """Place where the stream stops, with the connection open."""
    junk: int | None = None
    """Place of a frame that is not JSON."""
    cached: int = 0
    """Tokens of the prompt that are reported as cached."""
    reasoning: int = 0
    """Tokens of reasoning that are reported."""
    usage: int = 1
    """0 leaves out the usage."""
    finish: str = "stop"
    """Finish reason, in the words of chat."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    name: str
    schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ask:
    """A request, whatever its format.

    `texts` are all texts, the last of the user's being `prompt`. `must_call` names the function
    to call, "" any, None none in particular. `schema` is that of a wanted JSON answer.
    """

    model: str
    prompt: str
    texts: Sequence[str]
    stream: bool
    images: int = 0
    tools: Sequence[Tool] = ()
    must_call: str | None = None
    has_result: bool = False
    schema: dict[str, Any] | None = None
    most_tokens: int | None = None
    stops: Sequence[str] = ()
    choices: int = 1


@dataclass(frozen=True, slots=True)
class Call:
    """A function call; `arguments` is JSON."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model writes: pieces of text, one a chunk, and calls; and the tokens of it all.

    All `choices` are the same.
    """

    pieces: Sequence[str]
    calls: Sequence[Call]
    finish: str
    prompt_tokens: int
    output_tokens: int
    choices: int

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self.pieces)


def read_directives(ask: Ask) -> Directives:
    """Return the directives of an ask.

    Unknown markers and values that are no numbers do nothing.
    """
    kinds = {field.name: field.type for field in fields(Directives)}
    found: dict[str, Any] = {}
    for name, value in _MARKER.findall(f"{ask.model} {ask.prompt}"):
        kind = kinds.get(name)
        if kind is str:
            found[name] = value
        elif kind is not None:
            try:
                found[name] = float(value) if kind is float else int(value)
            except ValueError:
                continue
    return Directives(**found)


def write_reply(ask: Ask, directives: Directives) -> Reply:
    """Return the model's answer to an ask."""
    is_answer = ask.has_result and ask.must_call is None
    calls = [] if is_answer else _choose_calls(ask)
    text = "" if calls else _write_text(ask, directives)
    for stop in ask.stops:
        text = text.partition(stop)[0] if stop else text
    pieces = _WORD.findall(text) or ([text] if text else [])
    finish = directives.finish
    if ask.most_tokens is not None and len(pieces) > ask.most_tokens:
        pieces, finish = pieces[: ask.most_tokens], "length"
    elif calls and finish == "stop":
        finish = "tool_calls"
    tokens = sum(len(_WORD.findall(each)) for each in ask.texts) + IMAGE_TOKENS * ask.images
    output = len(pieces) + sum(len(call.arguments) // 4 + 1 for call in calls)
    output = ask.choices * (output + directives.reasoning)
    return Reply(pieces, calls, finish, max(tokens, 1), output, ask.choices)


def make_sample(schema: Any) -> Any:
    """Return a value of a JSON Schema, always the same."""
    if not isinstance(schema, dict):
        return None
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = kind[0] if kind else None
    match str(kind).lower():
        case "object":
            inner = schema.get("properties")
            return {name: make_sample(each) for name, each in (inner or {}).items()}
        case "array":
            return [make_sample(schema.get("items"))]
        case "integer":
            return 7
        case "number":
            return 7.5
        case "boolean":
            return True
        case "string":
            return "sample"
        case _:
            return None


def _choose_calls(ask: Ask) -> list[Call]:
    """Return the functions that are forced or that the prompt names."""
    if ask.must_call is not None:
        chosen = [tool for tool in ask.tools if ask.must_call in ("", tool.name)][:1]
    else:
        chosen = [tool for tool in ask.tools if tool.name in ask.prompt]
    return [
        Call(tool.name, orjson.dumps(make_sample(tool.schema) or {}).decode()) for tool in chosen
    ]


def _write_text(ask: Ask, directives: Directives) -> str:
    if ask.schema is not None:
        return orjson.dumps(make_sample(ask.schema) or {}).decode()
    if directives.words is not None:
        count = min(directives.words, MOST_WORDS)
        return " ".join(_FILLING[place % len(_FILLING)] for place in range(count))
    if ask.has_result:
        return f"The function says: {ask.texts[-1] if ask.texts else ''}"
    return f"You said: {_MARKER.sub('', ask.prompt).strip()}"
