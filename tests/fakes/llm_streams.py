"""Streams of language models as providers send them, and ways to cut and read streams."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import orjson

from gateway_core.llm.formats.streams import LlmStream

UPSTREAM = "upstream-2026-01"


def chat_chunks(*texts: str, model: str = UPSTREAM, usage: bool = True) -> list[dict[str, Any]]:
    """Chunks of one choice; `usage`: each has the field, and the last one the totals."""
    shared = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model}
    extra = {"usage": None} if usage else {}

    def chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        return shared | {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]} | extra

    chunks = [chunk({"role": "assistant", "content": ""})]
    chunks += [chunk({"content": text}) for text in texts]
    chunks.append(chunk({}, "stop"))
    if usage:
        totals = {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}
        totals["prompt_tokens_details"] = {"cached_tokens": 4}
        chunks.append(shared | {"choices": [], "usage": totals})
    return chunks


def responses_events(*texts: str, model: str = UPSTREAM) -> list[dict[str, Any]]:
    """Events of one message."""
    part = {"type": "output_text", "annotations": [], "text": ""}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress"}
    response = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": "in_progress",
        "model": model,
        "metadata": {"model": "own"},
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None,
    }
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    text = "".join(texts)
    done = item | {"status": "completed", "content": [part | {"text": text}]}
    usage = {"input_tokens": 9, "output_tokens": 5, "total_tokens": 14}
    final = response | {"status": "completed", "output": [done], "usage": usage}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": response},
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": item | {"content": []},
        },
        {"type": "response.content_part.added", **place, "part": part},
        *(
            {"type": "response.output_text.delta", **place, "delta": text, "logprobs": []}
            for text in texts
        ),
        {"type": "response.output_text.done", **place, "text": text, "logprobs": []},
        {"type": "response.content_part.done", **place, "part": part | {"text": text}},
        {"type": "response.output_item.done", "output_index": 0, "item": done},
        {"type": "response.completed", "response": final},
    ]
    return [event | {"sequence_number": number} for number, event in enumerate(events)]


def google_chunks(*texts: str, model: str = UPSTREAM) -> list[dict[str, Any]]:
    """Chunks of one candidate, each with the usage so far."""
    chunks: list[dict[str, Any]] = []
    for number, text in enumerate(texts, 1):
        candidate = {"content": {"role": "model", "parts": [{"text": text}]}, "index": 0}
        if number == len(texts):
            candidate["finishReason"] = "STOP"
        chunks.append(
            {
                "candidates": [candidate],
                "usageMetadata": {
                    "promptTokenCount": 9,
                    "candidatesTokenCount": number,
                    "totalTokenCount": 9 + number,
                },
                "modelVersion": model,
                "responseId": "r1",
            }
        )
    return chunks


def write_frames(chunks: Iterable[Any], *, line_end: bytes = b"\n", named: bool = False) -> bytes:
    """Chunks as server-sent events; `named`: each has its type as `event`."""
    frames = []
    for chunk in chunks:
        event = b"event: %b" % chunk["type"].encode() + line_end if named else b""
        data = chunk if isinstance(chunk, bytes) else orjson.dumps(chunk)
        frames.append(event + b"data: " + data + 2 * line_end)
    return b"".join(frames)


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    """`data` in pieces that end at `places`."""
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in pairwise(edges)]


def run_stream(stream: LlmStream, pieces: Sequence[bytes]) -> bytes:
    """All that the client gets."""
    return b"".join(map(stream.feed, pieces)) + stream.finish()


def read_frames(data: bytes) -> list[Any]:
    """Documents of the frames of a well-formed stream, and "[DONE]"."""
    documents = []
    assert data.endswith(b"\n\n")
    for frame in data[:-2].split(b"\n\n"):
        *event, line = frame.split(b"\n")
        assert line.startswith(b"data: ")
        if line == b"data: [DONE]":
            documents.append("[DONE]")
            continue
        document = orjson.loads(line[6:])
        assert event in ([], [b"event: " + str(document.get("type")).encode()])
        documents.append(document)
    return documents
