"""JSON of providers, which is not always JSON.

Its strings may have halves of characters: those beyond U+FFFF are two escapes, a pair of
surrogates, all but ASCII are several bytes, and providers cut answers into frames anywhere. Some
write control characters without escapes, and numbers that are none.
"""

import json
import math
import re
from codecs import BOM_UTF8, register_error
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from gateway_core.llm.formats.calls import as_objects

_HIGH = ("\ud800", "\udbff")
_LOW = ("\udc00", "\udfff")
_BYTES = 0x10FF00
"""Bytes of UTF-8 that are no whole character are characters of the last private plane."""
_BYTE_MARK = "\U0010ff80".encode()[:3]
"""The beginning of these; no text has them."""
_LONE_BYTES = re.compile("[\U0010ff80-\U0010ffff]+")
_LAST_BYTES = re.compile("[\U0010ffc2-\U0010fff4][\U0010ff80-\U0010ffbf]{0,2}$")
"""The beginning of a character at the end of a string."""
_LEAST_LOGPROB = -9999.0
"""OpenAI's word for the logarithm of 0."""
_MOST_WAITING = 16
"""Frames that wait for the other half of a character."""
_MOST_DEPTH = 16
"""Levels of a document in which halves are joined."""

Path = tuple[Any, ...]


def load(data: bytes) -> Any:
    """Return the value of a document, with U+FFFD for each half of a character. ValueError.

    Control characters may stand in strings; NaN and the infinities become null, but for the
    smallest logarithm.
    """
    data = data.removeprefix(BOM_UTF8)
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return _mend(_parse(data))


def load_arguments(text: str) -> Any:
    """Return the arguments of a function call, as `load`, but none with a number that is none."""
    data = text.encode("utf-8", "surrogatepass")
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return _mend(_parse(data, _refuse_number))


def _replace_number(text: str) -> float | None:
    """Return the value instead of a number that is none, or is beyond all floats."""
    return _LEAST_LOGPROB if text == "-Infinity" else None


def _refuse_number(text: str) -> None:
    raise ValueError(f"{text[:20]} is no number of JSON.")


def _parse(data: bytes, replace: Callable[[str], Any] = _replace_number) -> Any:
    """Return the value of a document whose halves of characters are as they came. ValueError."""

    def read_float(text: str) -> Any:
        number = float(text)
        return number if math.isfinite(number) else replace(text)

    try:
        text = data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        # characters are not told apart from bytes that look like them
        text = data.decode("utf-8", "replace" if _BYTE_MARK in data else _KEEP_BYTES)
    try:
        return json.loads(text, strict=False, parse_constant=replace, parse_float=read_float)
    except RecursionError as error:
        raise ValueError("The document is nested too deeply.") from error


def _keep_bytes(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    data = error.object[error.start : error.end]
    return "".join(chr(_BYTES + byte) for byte in data), error.end


_KEEP_BYTES = "gateway.keep_bytes"
register_error(_KEEP_BYTES, _keep_bytes)


def _mend(document: Any) -> Any:
    """Return the document with U+FFFD for each half of a character. ValueError."""
    try:
        text = json.dumps(document, ensure_ascii=False)
    except RecursionError as error:
        raise ValueError("The document is nested too deeply.") from error
    text = _LONE_BYTES.sub(lambda found: _join_bytes(found[0]), text)
    return orjson.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def _join_bytes(text: str) -> str:
    return bytes(ord(character) - _BYTES for character in text).decode("utf-8", "replace")


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
        document = _parse(data)
        texts = {path: (holder, name) for path, holder, name in _list_texts(document)}
        for earlier in self._waiting:
            for path, (before, name) in list(earlier.halves.items()):
                holder, key = texts.get(path, ({}, ""))
                text = holder.get(key, "")
                if text:
                    begun = before[name]
                    count = _count_half(begun)
                    if _goes_on(begun, text):
                        holder[key] = begun[-count:] + text
                        before[name] = begun[:-count]
                    del earlier.halves[path]
        halves = {
            path: (holder, key) for path, (holder, key) in texts.items() if _count_half(holder[key])
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
        return [(_mend(each.document), each.frame) for each in taken]


def _count_half(text: str) -> int:
    """Return how many characters at the end of a string are the beginning of one."""
    if _HIGH[0] <= text[-1:] <= _HIGH[1]:
        return 1
    begun = _LAST_BYTES.search(text)
    return 0 if begun is None else len(begun[0])


def _goes_on(begun: str, text: str) -> bool:
    """Return whether a string begins with what the end of another one lacks."""
    if begun[-1] <= _HIGH[1]:
        return _LOW[0] <= text[0] <= _LOW[1]
    return chr(_BYTES + 0x80) <= text[0] <= chr(_BYTES + 0xBF)


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
    """Yield the strings in the objects of a document: where they belong, object and key."""
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
