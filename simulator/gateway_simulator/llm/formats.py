"""Answers and streams of language models in the three formats; used by `routes`.

A stream is a list of frames, each whole. Errors have the form of their format.
"""

import secrets
from typing import Any

import orjson

from gateway_simulator.llm.model import Ask, Directives, Reply

_GOOGLE_REASONS = {"length": "MAX_TOKENS", "content_filter": "SAFETY"}
_GOOGLE_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}
_CUT_BY = {"length": "max_output_tokens", "content_filter": "content_filter"}

Document = dict[str, Any]


class Writer:
    """Writes one reply; `now` is the time in Unix seconds."""

    def __init__(self, ask: Ask, reply: Reply, directives: Directives, now: int) -> None:
        self._ask = ask
        self._reply = reply
        self._directives = directives
        self._now = now
        self._id = secrets.token_hex(12)

    def chat_answer(self) -> Document:
        """Return a chat completion."""
        reply = self._reply
        message: Document = {
            "role": "assistant",
            "content": None if reply.calls else reply.text,
            "refusal": None,
        }
        if reply.calls:
            message["tool_calls"] = self._make_chat_calls()
        choice = {"message": message, "logprobs": None, "finish_reason": reply.finish}
        choices = [{"index": index, **choice} for index in range(reply.choices)]
        usage = {"usage": self._chat_usage()} if self._directives.usage else {}
        return self._shape_chat("chat.completion") | {"choices": choices} | usage

    def chat_stream(self, *, include_usage: bool) -> list[bytes]:
        """Return the frames of a chat stream."""
        shape = self._shape_chat("chat.completion.chunk")
        empty = {"usage": None} if include_usage else {}

        def frame(delta: Document, reason: str | None = None) -> bytes:
            choice = {"delta": delta, "logprobs": None, "finish_reason": reason}
            choices = [{"index": index, **choice} for index in range(self._reply.choices)]
            return _data(shape | {"choices": choices} | empty)

        frames = [frame({"role": "assistant", "content": "", "refusal": None})]
        frames += [frame({"content": piece}) for piece in self._reply.pieces]
        for index, call in enumerate(self._make_chat_calls()):
            arguments = call["function"]["arguments"]
            call["function"] = call["function"] | {"arguments": ""}
            frames.append(frame({"tool_calls": [{"index": index, **call}]}))
            for start in range(0, len(arguments), 12):
                piece = {"arguments": arguments[start : start + 12]}
                frames.append(frame({"tool_calls": [{"index": index, "function": piece}]}))
        frames.append(frame({}, self._reply.finish))
        if include_usage and self._directives.usage:
            frames.append(_data(shape | {"choices": [], "usage": self._chat_usage()}))
        return [*frames, b"data: [DONE]\n\n"]

    def responses_answer(self) -> Document:
        """Return a Responses object."""
        return self._finish_response(self._begin_response(), self._make_items())

    def responses_stream(self) -> list[bytes]:
        """Return the frames of a Responses stream."""
        response = self._begin_response()
        items = self._make_items()
        events: list[Document] = [
            {"type": "response.created", "response": response},
            {"type": "response.in_progress", "response": response},
        ]
        for place, item in enumerate(items):
            about = {"item_id": item["id"], "output_index": place}
            is_text = item["type"] == "message"
            begun = item | {"status": "in_progress"}
            begun["content" if is_text else "arguments"] = [] if is_text else ""
            events.append(
                {"type": "response.output_item.added", "output_index": place, "item": begun}
            )
            if is_text:
                events += self._write_text(about | {"content_index": 0}, item["content"][0])
            else:
                kind = "response.function_call_arguments"
                arguments = item["arguments"]
                events.append({"type": f"{kind}.delta", **about, "delta": arguments})
                done = {"arguments": arguments, "name": item["name"]}
                events.append({"type": f"{kind}.done", **about, **done})
            events.append(
                {"type": "response.output_item.done", "output_index": place, "item": item}
            )
        final = self._finish_response(response, items)
        events.append({"type": f"response.{final['status']}", "response": final})
        return [
            b"event: %b\n" % event["type"].encode() + _data({**event, "sequence_number": number})
            for number, event in enumerate(events)
        ]

    def google_answer(self) -> Document:
        """Return a generateContent answer."""
        parts = [{"text": self._reply.text}] if self._reply.pieces else []
        return self._shape_google([*parts, *self._make_google_calls()], len(self._reply.pieces))

    def google_stream(self) -> list[Document]:
        """Return the chunks of a streamGenerateContent answer."""
        parts: list[Document] = [{"text": piece} for piece in self._reply.pieces]
        parts += self._make_google_calls()
        last = len(parts) - 1
        chunks = [
            self._shape_google([part], place + 1, is_last=place == last)
            for place, part in enumerate(parts)
        ]
        return chunks or [self._shape_google([{"text": ""}], 0)]

    def _shape_chat(self, kind: str) -> Document:
        return {
            "id": f"chatcmpl-{self._id}",
            "object": kind,
            "created": self._now,
            "model": self._ask.model,
            "system_fingerprint": "fp_simulated",
        }

    def _chat_usage(self) -> Document:
        reply = self._reply
        return {
            "prompt_tokens": reply.prompt_tokens,
            "completion_tokens": reply.output_tokens,
            "total_tokens": reply.prompt_tokens + reply.output_tokens,
            "prompt_tokens_details": {"cached_tokens": self._directives.cached},
            "completion_tokens_details": {"reasoning_tokens": self._directives.reasoning},
        }

    def _make_chat_calls(self) -> list[Document]:
        return [
            {
                "id": f"call_{secrets.token_hex(12)}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in self._reply.calls
        ]

    def _begin_response(self) -> Document:
        return {
            "id": f"resp_{self._id}",
            "object": "response",
            "created_at": self._now,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "model": self._ask.model,
            "output": [],
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "usage": None,
        }

    def _finish_response(self, response: Document, items: list[Document]) -> Document:
        reply = self._reply
        cut_by = _CUT_BY.get(reply.finish)
        usage = {
            "input_tokens": reply.prompt_tokens,
            "input_tokens_details": {"cached_tokens": self._directives.cached},
            "output_tokens": reply.output_tokens,
            "output_tokens_details": {"reasoning_tokens": self._directives.reasoning},
            "total_tokens": reply.prompt_tokens + reply.output_tokens,
        }
        return response | {
            "status": "incomplete" if cut_by else "completed",
            "incomplete_details": {"reason": cut_by} if cut_by else None,
            "output": items,
            "usage": usage if self._directives.usage else None,
        }

    def _make_items(self) -> list[Document]:
        calls: list[Document] = [
            {
                "id": f"fc_{secrets.token_hex(24)}",
                "type": "function_call",
                "status": "completed",
                "call_id": f"call_{secrets.token_hex(12)}",
                "name": call.name,
                "arguments": call.arguments,
            }
            for call in self._reply.calls
        ]
        if calls:
            return calls
        text = {"type": "output_text", "text": self._reply.text, "annotations": [], "logprobs": []}
        return [
            {
                "id": f"msg_{secrets.token_hex(24)}",
                "type": "message",
                "status": "completed",
                "role": "assistant",
                "content": [text],
            }
        ]

    def _write_text(self, about: Document, part: Document) -> list[Document]:
        kind = "response.output_text"
        return [
            {"type": "response.content_part.added", **about, "part": part | {"text": ""}},
            *(
                {"type": f"{kind}.delta", **about, "delta": piece, "logprobs": []}
                for piece in self._reply.pieces
            ),
            {"type": f"{kind}.done", **about, "text": part["text"], "logprobs": []},
            {"type": "response.content_part.done", **about, "part": part},
        ]

    def _make_google_calls(self) -> list[Document]:
        return [
            {"functionCall": {"name": call.name, "args": orjson.loads(call.arguments)}}
            for call in self._reply.calls
        ]

    def _shape_google(
        self, parts: list[Document], tokens: int, *, is_last: bool = True
    ) -> Document:
        reply, directives = self._reply, self._directives
        candidate: Document = {"content": {"role": "model", "parts": parts}}
        if is_last:
            candidate["finishReason"] = _GOOGLE_REASONS.get(reply.finish, "STOP")
            tokens = reply.output_tokens - directives.reasoning
        total = reply.prompt_tokens + tokens + directives.reasoning
        usage = {
            "promptTokenCount": reply.prompt_tokens,
            "candidatesTokenCount": tokens,
            "totalTokenCount": total,
        }
        if directives.reasoning:
            usage["thoughtsTokenCount"] = directives.reasoning
        if directives.cached:
            usage["cachedContentTokenCount"] = directives.cached
        candidates = [{**candidate, "index": index} for index in range(reply.choices)]
        document: Document = {"candidates": candidates}
        if directives.usage:
            document["usageMetadata"] = usage
        return document | {"modelVersion": self._ask.model, "responseId": self._id}


def google_frame(chunk: Document) -> bytes:
    """Return a chunk as Google's own servers frame it."""
    return b"data: %b\r\n\r\n" % orjson.dumps(chunk)


def shape_openai_error(status: int, code: str, message: str) -> Document:
    """Return an error of OpenAI's formats."""
    kind = "rate_limit_error" if status == 429 else "invalid_request_error"
    kind = "server_error" if status >= 500 else kind
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def shape_google_error(status: int, code: str, message: str) -> Document:
    """Return an error of Google's format."""
    word = _GOOGLE_STATUS.get(status, "UNKNOWN")
    return {"error": {"code": status, "message": message, "status": word}}


def _data(document: Document) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(document)
