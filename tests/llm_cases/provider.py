"""A provider that answers each call of a variant by the next script of its case."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from tests.servers.llm_provider import LlmProvider, Received, Reply

ENDS = {"/chat/completions": "openai", "/responses": "responses"}
"""Ends of paths, and the format of the calls there; all other paths are Google's."""


@dataclass
class Route:
    """What the provider answers to the calls of one variant, and what it received."""

    upstream: Any
    received: list[Received] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def begin(self, upstream: Any) -> None:
        """Begin a turn."""
        self.upstream = upstream
        self.received.clear()
        self.counts.clear()


class CaseProvider(LlmProvider):
    """Serves the routes by the first segment of their paths."""

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.routes: dict[str, Route] = {}

    async def _answer(self, reply: Reply, received: Received) -> None:
        self.received.clear()
        path = received.target.partition("?")[0]
        route = self.routes[path.split("/")[1]]
        route.received.append(received)
        format_ = next((name for end, name in ENDS.items() if path.endswith(end)), "google")
        streams = "alt=sse" in received.target or bool(as_dict(received.body).get("stream"))
        await write_answer(reply, choose_script(route, format_), format_, streams=streams)


def as_dict(value: Any) -> dict[str, Any]:
    """`value` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def choose_script(route: Route, format_: str) -> dict[str, Any]:
    """The next script for a call of the format; the last one is repeated."""
    scripts, key = route.upstream, ""
    if isinstance(scripts, dict) and not scripts.keys().isdisjoint((*ENDS.values(), "google")):
        scripts, key = scripts[format_], format_
    scripts = scripts if isinstance(scripts, list) else [scripts]
    place = min(route.counts[key], len(scripts) - 1)
    route.counts[key] += 1
    script: dict[str, Any] = scripts[place]
    return script


async def write_answer(
    reply: Reply, script: Mapping[str, Any], format_: str, *, streams: bool
) -> None:
    """Write the answer of a script: its frames to a call for a stream, else its body."""
    await asyncio.sleep(script.get("delay", 0))
    status = script.get("status", 200)
    is_stream = "frames" in script and (streams or "body" not in script)
    if "raw" in script:
        pieces: list[bytes | float] = [script["raw"].encode()]
    elif is_stream:
        pieces = write_frames(script["frames"], format_)
    else:
        pieces = [write_body(script.get("body", {}), format_)]
    is_chunked = is_stream or "raw" in script
    headers = {"content-type": "text/event-stream" if is_chunked else "application/json"}
    headers |= {key.lower(): str(value) for key, value in script.get("headers", {}).items()}
    if is_chunked:
        headers["transfer-encoding"] = "chunked"
    else:
        headers["content-length"] = str(sum(len(piece) for piece in pieces if piece))
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    await reply.raw(f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode())
    size = script.get("pieces", 1 << 24)
    left = script.get("bytes", 1 << 30)
    for piece in pieces:
        if isinstance(piece, float):
            await asyncio.sleep(piece)
            continue
        for start in range(0, len(piece), size):
            data = piece[start : min(start + size, left)]
            left -= len(data)
            if data:
                await (reply.chunk(data) if is_chunked else reply.raw(data))
                # each arrives alone
                await asyncio.sleep(0.002 if size < 1 << 24 else 0)
    await end_answer(reply, script.get("end"), is_chunked=is_chunked)


async def end_answer(reply: Reply, end: str | None, *, is_chunked: bool) -> None:
    """End an answer well, or as the script says."""
    match end:
        case None if is_chunked:
            await reply.end()
        case "close":
            # what was written arrives before the end
            reply.close()
        case "reset":
            # the client has read what was written
            await asyncio.sleep(0.05)
            reply.reset()
        case "stall":
            await asyncio.sleep(3600)


def write_body(body: Any, format_: str) -> bytes:
    """A whole answer; a mapping with `message`, `parts` or `output` is completed."""
    if not isinstance(body, dict):
        return body.encode() if isinstance(body, str) else orjson.dumps(body)
    if format_ == "openai" and "message" in body:
        message = {"role": "assistant", "content": None, **body["message"]}
        choice = {"index": 0, "message": message, "finish_reason": body.get("finish", "stop")}
        body = _write_chat("chat.completion", [choice], body)
    elif format_ == "google" and "parts" in body:
        body = _write_generated({"finish": "STOP", **body})
    elif format_ == "responses" and "output" in body:
        body = {**RESPONSE, **body}
    return orjson.dumps(body)


RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "model": "up-1",
    "status": "completed",
    "error": None,
    "incomplete_details": None,
    "instructions": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "temperature": 1.0,
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
}


def write_frames(frames: list[Any], format_: str) -> list[bytes | float]:
    """The frames of a stream, and pauses between them in seconds."""
    return [_write_frame(frame, number, format_) for number, frame in enumerate(frames)]


def _write_frame(frame: Any, number: int, format_: str) -> bytes | float:
    if isinstance(frame, str):
        named = frame.startswith((":", "data:", "event:"))
        return f"{'' if named else 'data: '}{frame}\n\n".encode()
    if "pause" in frame:
        return float(frame["pause"])
    if format_ == "responses" and "type" in frame:
        frame = {"sequence_number": number, **frame}
        if isinstance(frame.get("response"), dict):
            frame["response"] = {**RESPONSE, "output": [], **frame["response"]}
        return f"event: {frame['type']}\n".encode() + _write_data(frame)
    if format_ == "openai" and "delta" in frame:
        choice = {"index": 0, "delta": frame["delta"], "finish_reason": frame.get("finish")}
        frame = _write_chat("chat.completion.chunk", [choice], frame)
    elif format_ == "openai" and set(frame) == {"usage"}:
        frame = _write_chat("chat.completion.chunk", [], frame)
    elif format_ == "google" and "parts" in frame:
        frame = _write_generated(frame)
    return _write_data(frame)


def _write_data(document: Any) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(document)


def _write_chat(kind: str, choices: list[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    document = {"id": "c-1", "object": kind, "created": 1, "model": "up-1", "choices": choices}
    return document | ({"usage": given["usage"]} if "usage" in given else {})


def _write_generated(given: Mapping[str, Any]) -> dict[str, Any]:
    candidate: dict[str, Any] = {"index": 0, "content": {"role": "model", "parts": given["parts"]}}
    if given.get("finish"):
        candidate["finishReason"] = given["finish"]
    document: dict[str, Any] = {"candidates": [candidate], "modelVersion": "up-1"}
    return document | ({"usageMetadata": given["usage"]} if "usage" in given else {})
