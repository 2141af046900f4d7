"""JSON of providers, whose strings may have halves of characters.

Characters beyond U+FFFF are two escapes in JSON, a pair of surrogates. Providers cut answers into
frames anywhere, also between the two.
"""

import json
import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from gateway_core.llm.formats.calls import as_objects

_ESCAPE = re.compile(
    r"\\u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2}"
    r"|(?P<half>\\u[dD][89a-fA-F][\da-fA-F]{2})|\\."
)
_HIGH = ("\ud800", "\udbff")
_LOW = ("\udc00", "\udfff")
_MOST_WAITING = 16
"""Frames that wait for the other half of a character."""
_MOST_DEPTH = 16
"""Levels of a document in which halves are joined."""

Path = tuple[Any, ...]


def load(data: bytes) -> Any:
    """Return the value of a document, with U+FFFD for each half of a character. ValueError."""
    data = data.removeprefix(BOM_UTF8)
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return orjson.loads(_mend(_decode(data)))


def _decode(data: bytes) -> str:
    """The text of a document, with halves of characters as they are."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        # a provider may cut a character between its bytes, too
        return data.decode("utf-8", "replace")


def _mend(text: str) -> bytes:
    """JSON with U+FFFD for each half of a character, as an escape or not."""
    text = _ESCAPE.sub(lambda found: r"\ufffd" if found["half"] else found[0], text)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


@dataclass(slots=True)
class _Waiting:
    """A document, the frame that it came in, and its strings that end with half a character."""

    document: Any
    frame: bytes
    halves: dict[Path, tuple[dict[str, Any], str]]


class HalfJoiner:
    """Joins halves of characters over the documents of one stream.

    A document that ends with a half waits until the same string goes on, or the stream ends.
    """

    def __init__(self) -> None:
        self._waiting: list[_Waiting] = []
        self.is_waiting = False
        """Return whether a document waits; looked at for each frame, so no property."""

    def add(self, data: bytes, frame: bytes) -> list[tuple[Any, bytes]]:
        """Return the documents that need not wait, each with its frame. ValueError."""
        try:
            document = json.loads(_decode(data), parse_constant=_refuse_constant)
        except RecursionError as error:
            raise ValueError("The document is nested too deeply.") from error
        texts = {path: (holder, name) for path, holder, name in _list_texts(document)}
        for earlier in self._waiting:
            for path, (before, name) in list(earlier.halves.items()):
                holder, key = texts.get(path, ({}, ""))
                text = holder.get(key, "")
                if text:
                    if _LOW[0] <= text[0] <= _LOW[1]:
                        holder[key] = before[name][-1] + text
                        before[name] = before[name][:-1]
                    del earlier.halves[path]
        halves = {
            path: (holder, key)
            for path, (holder, key) in texts.items()
            if _HIGH[0] <= holder[key][-1:] <= _HIGH[1]
        }
        self._waiting.append(_Waiting(document, frame, halves))
        if _is_last(document) or len(self._waiting) > _MOST_WAITING:
            return self.release()
        return self._take(next((n for n, each in enumerate(self._waiting) if each.halves), None))

    def release(self) -> list[tuple[Any, bytes]]:
        """Return all documents that wait. ValueError."""
        return self._take(None)

    def _take(self, count: int | None) -> list[tuple[Any, bytes]]:
        taken, self._waiting = self._waiting[:count], [] if count is None else self._waiting[count:]
        self.is_waiting = bool(self._waiting)
        try:
            return [(orjson.loads(_mend(json.dumps(each.document))), each.frame) for each in taken]
        except RecursionError as error:
            raise ValueError("The document is nested too deeply.") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON.")


def _is_last(document: Any) -> bool:
    """Return whether the strings of a document are the last ones of their kind."""
    if not isinstance(document, dict):
        return True
    kind = document.get("type")
    if isinstance(kind, str):
        return not kind.endswith(".delta")
    return bool(document.get("error")) or any(
        choice.get("finish_reason") or choice.get("finishReason")
        for name in ("choices", "candidates")
        for choice in as_objects(document.get(name))
    )


def _list_texts(
    value: Any, path: Path = (), depth: int = _MOST_DEPTH
) -> Iterator[tuple[Path, dict[str, Any], str]]:
    """The strings in the objects of a document: where they belong, their object and its key."""
    if not depth:
        return
    if isinstance(value, list):
        for place, item in enumerate(value):
            name = item.get("index", place) if isinstance(item, dict) else place
            yield from _list_texts(item, (*path, name), depth - 1)
    elif isinstance(value, dict):
        if not path:
            names = ("type", "output_index", "content_index", "summary_index")
            path = tuple(value.get(name) for name in names)
        # thoughts and texts of Google are parts of the same place
        path = (*path, value.get("thought") is True)
        for key, item in value.items():
            if isinstance(item, str):
                yield (*path, key), value, key
            else:
                yield from _list_texts(item, (*path, key), depth - 1)
