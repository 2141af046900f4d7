"""LLM streams as clients must get them: strict readers of the bytes of each dialect (§7, §8)."""

from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway_core.llm.formats.calls import as_object, as_objects


@dataclass
class ReadStream:
    """What a client gets from a stream that has the form of its dialect.

    `error` is the object that ended it, None where it ended well.
    """

    documents: list[dict[str, Any]] = field(default_factory=list)
    error: dict[str, Any] | None = None
    text: str = ""
    usage: Any = None


def read_chat(body: bytes, *, include_usage: bool = False) -> ReadStream:
    """A chat stream (§7.2): comments, chunks, then [DONE], or an error without it."""
    read = ReadStream()
    *frames, last = _split(body, comments=True)
    if last != [b"data: [DONE]"]:
        read.error = _read_openai_error(_load(last))
    for lines in frames:
        chunk = _load(lines)
        assert isinstance(chunk["choices"], list), chunk
        assert "error" not in chunk
        assert ("usage" in chunk) == include_usage, chunk
        assert read.usage is None, "chunks follow the usage"
        read.usage = chunk.get("usage")
        read.documents.append(chunk)
        for choice in chunk["choices"]:
            read.text += as_object(choice.get("delta")).get("content") or ""
    if read.usage is not None:
        assert read.documents[-1]["choices"] == []
    return read


def read_responses(body: bytes) -> ReadStream:
    """A Responses stream (§7.3): named events, numbered from 0 without a gap; no [DONE].

    A failed one ends with `error` and `response.failed`.
    """
    read = ReadStream()
    for number, lines in enumerate(_split(body, comments=True)):
        name, data = lines
        event = _load([data])
        assert name == b"event: " + event["type"].encode(), lines
        assert event["sequence_number"] == number, lines
        assert read.error is None or event["type"] == "response.failed", event
        if event["type"] == "error":
            read.error = _read_openai_error({"error": event["error"]})
            assert (event["code"], event["param"]) == (read.error["code"], None)
            assert event["message"] == read.error["message"]
            continue
        read.documents.append(event)
        if event["type"] == "response.output_text.delta":
            read.text += event.get("delta") or ""
        read.usage = as_object(event.get("response")).get("usage") or read.usage
    if read.error is not None:
        failed = read.documents.pop()
        assert failed["type"] == "response.failed"
        assert failed["response"]["status"] == "failed"
        assert failed["response"]["error"]["code"]
        begun = as_object(read.documents[0].get("response")) if read.documents else {}
        assert failed["response"]["id"] == begun.get("id", failed["response"]["id"])
    else:
        ends = [event["type"] for event in read.documents if _ends_response(event["type"])]
        assert ends == [read.documents[-1]["type"]]
    return read


def read_google(body: bytes) -> ReadStream:
    """A Google stream of events (§8.5): data frames alone; an error is the last (§8.6)."""
    return _read_google_chunks([_load(lines) for lines in _split(body)])


def read_google_array(body: bytes) -> ReadStream:
    """The same as one JSON array."""
    body.decode()
    return _read_google_chunks(orjson.loads(body))


def _read_google_chunks(chunks: list[dict[str, Any]]) -> ReadStream:
    read = ReadStream(chunks)
    if chunks and list(chunks[-1]) == ["error"]:
        read.error = chunks.pop()["error"]
        assert read.error
        assert isinstance(read.error["code"], int)
        assert read.error["message"]
        assert read.error["status"].isupper()
    for chunk in chunks:
        assert "error" not in chunk
        read.usage = chunk.get("usageMetadata") or read.usage
        for candidate in as_objects(chunk.get("candidates")):
            parts = as_objects(as_object(candidate.get("content")).get("parts"))
            read.text += "".join(part.get("text") or "" for part in parts)
    return read


def _ends_response(kind: str) -> bool:
    return kind in ("response.completed", "response.incomplete")


def _split(body: bytes, *, comments: bool = False) -> list[list[bytes]]:
    """Lines of each frame, without comments; nothing follows the last blank line."""
    text = body.decode()
    assert "\r" not in text
    assert text.endswith("\n\n"), text[-200:]
    frames = [frame.encode().split(b"\n") for frame in text[:-2].split("\n\n")]
    if comments:
        frames = [lines for lines in frames if not lines[0].startswith(b":")]
    return frames


def _load(lines: list[bytes]) -> dict[str, Any]:
    """The object of a frame of one data line with one space."""
    [line] = lines
    assert line.startswith(b"data: {"), line
    document: dict[str, Any] = orjson.loads(line[len(b"data: ") :])
    return document


def _read_openai_error(document: dict[str, Any]) -> dict[str, Any]:
    error: dict[str, Any] = document["error"]
    assert list(document) == ["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["type"]
    assert error["code"]
    assert error["param"] is None
    return error
