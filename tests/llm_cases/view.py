"""What a client sees in an answer: the dialects' own models parse it strictly, then it is compared.

Each reader takes the raw body of an answer, whole or streamed.
"""

from dataclasses import dataclass, field
from typing import Any

import orjson
from google.genai import types as genai
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
_ENDS = ("response.completed", "response.incomplete", "response.failed")


@dataclass
class View:
    """An answer in words that all dialects share; `finish` is in the client's own word.

    `history` is what a client appends to its next request.
    """

    text: str = ""
    reasoning: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    finish: str | None = None
    usage: dict[str, int] | None = None
    error: Any = None
    events: list[str] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)
    done: bool = False
    """Return whether a chat stream ends with [DONE]."""


def read_answer(client: str, raw: bytes, *, stream: bool, strict: bool = True) -> View:
    """Return what the client sees.

    `strict`: raise ValidationError where the models of its SDK do not accept the answer.
    """
    documents = _split(raw, client) if stream else [orjson.loads(raw)]
    read = {"chat": _read_chat, "responses": _read_responses, "google": _read_google}[client]
    view = read(documents, stream, strict)
    if view.usage:
        assert view.usage.pop("total") == view.usage["input"] + view.usage["output"], view.usage
    return view


def _split(raw: bytes, client: str) -> list[Any]:
    """The documents of a stream, and "[DONE]"."""
    documents = []
    for frame in raw.decode().split("\n\n"):
        lines = [line for line in frame.split("\n") if line and not line.startswith(":")]
        if not lines:
            continue
        data = lines[-1].removeprefix("data: ")
        document = data if data == "[DONE]" else orjson.loads(data)
        if client == "responses":
            assert lines[0] == f"event: {document['type']}", lines
        documents.append(document)
    return documents


def _read_chat(documents: list[Any], stream: bool, strict: bool) -> View:
    view = View(done=documents[-1:] == ["[DONE]"])
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    calls: dict[int, dict[str, Any]] = {}
    for document in documents:
        if document == "[DONE]":
            continue
        if "error" in document:
            view.error = document["error"]
            continue
        if strict:
            (ChatCompletionChunk if stream else ChatCompletion).model_validate(document)
        view.usage = _count_chat(document.get("usage")) or view.usage
        for choice in document["choices"][:1]:
            view.finish = choice["finish_reason"] or view.finish
            delta = choice["delta" if stream else "message"]
            view.text += delta.get("content") or delta.get("refusal") or ""
            view.reasoning += delta.get("reasoning_content") or delta.get("reasoning") or ""
            for place, piece in enumerate(delta.get("tool_calls") or ()):
                _add_piece(calls, piece, piece["index"] if stream else place)
    view.calls = [
        {
            "id": call["id"],
            "name": call["function"]["name"],
            "arguments": call["function"]["arguments"],
        }
        for call in calls.values()
    ]
    message["content"] = view.text or None
    view.history = [message | ({"tool_calls": list(calls.values())} if calls else {})]
    return view


def _add_piece(calls: dict[int, dict[str, Any]], piece: dict[str, Any], index: int) -> None:
    """Join the pieces of a call as an SDK does."""
    if index not in calls:
        calls[index] = {**piece, "function": dict(piece["function"])}
        calls[index].pop("index", None)
        return
    for name, value in piece["function"].items():
        calls[index]["function"][name] = (calls[index]["function"].get(name) or "") + (value or "")


def _count_chat(usage: Any) -> dict[str, int] | None:
    if not usage:
        return None
    return {
        "input": usage["prompt_tokens"],
        "cached": (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        "output": usage["completion_tokens"],
        "reasoning": (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0,
        "total": usage["total_tokens"],
    }


def _read_responses(documents: list[Any], stream: bool, strict: bool) -> View:
    view = View()
    response = None if stream else documents[0]
    text = ""
    for number, event in enumerate(documents if stream else ()):
        if strict:
            _EVENT.validate_python(event)
        assert event["sequence_number"] == number, event
        view.events.append(event["type"])
        if event["type"] == "error":
            view.error = event["error"]
        elif event["type"] in ("response.output_text.delta", "response.refusal.delta"):
            text += event["delta"]
        elif event["type"] in _ENDS:
            response = event["response"]
    if response is None or ("error" in response and len(response) == 1):
        view.text = text
        view.error = view.error or (response or {}).get("error")
        return view
    if strict:
        Response.model_validate(response)
    view.error = view.error or response["error"]
    view.history = response["output"]
    for item in response["output"]:
        _read_item(view, item)
    if stream and response["status"] == "failed":
        # a provider's failed response may leave out its output
        view.text = text
    elif stream:
        assert text == view.text, "the pieces are not the whole"
    view.finish = (response["incomplete_details"] or {}).get("reason") or response["status"]
    usage = response.get("usage")
    if usage:
        view.usage = {
            "input": usage["input_tokens"],
            "cached": usage["input_tokens_details"]["cached_tokens"],
            "output": usage["output_tokens"],
            "reasoning": usage["output_tokens_details"]["reasoning_tokens"],
            "total": usage["total_tokens"],
        }
    return view


def _read_item(view: View, item: dict[str, Any]) -> None:
    match item["type"]:
        case "message":
            view.text += "".join(
                part.get("text") or part["refusal"]
                for part in item["content"]
                if part.get("text") or part.get("refusal")
            )
        case "reasoning":
            parts = [*(item.get("summary") or ()), *(item.get("content") or ())]
            view.reasoning += "".join(part["text"] for part in parts)
        case "function_call" | "custom_tool_call":
            call = {"id": item["call_id"], "name": item["name"]}
            call["arguments"] = item["arguments"] if "arguments" in item else item["input"]
            if item.get("status") not in ("completed", None):
                call["status"] = item["status"]
            view.calls.append(call)


def _read_google(documents: list[Any], stream: bool, strict: bool) -> View:
    view = View()
    parts: list[dict[str, Any]] = []
    for document in documents:
        if "error" in document:
            view.error = document["error"]
            continue
        if strict:
            genai.GenerateContentResponse.model_validate(document)
        view.usage = _count_google(document.get("usageMetadata")) or view.usage
        for candidate in document.get("candidates", ())[:1]:
            view.finish = candidate.get("finishReason") or view.finish
            parts += candidate.get("content", {}).get("parts", ())
    for part in parts:
        if "text" in part and part.get("thought"):
            view.reasoning += part["text"]
        elif "text" in part:
            view.text += part["text"]
        elif "functionCall" in part:
            call = part["functionCall"]
            view.calls.append(
                {"id": call.get("id") or "", "name": call["name"], "arguments": call["args"]}
            )
    view.history = [{"role": "model", "parts": parts}]
    return view


def _count_google(usage: Any) -> dict[str, int] | None:
    if not usage:
        return None
    thoughts = usage.get("thoughtsTokenCount", 0)
    return {
        "input": usage.get("promptTokenCount", 0) + usage.get("toolUsePromptTokenCount", 0),
        "cached": usage.get("cachedContentTokenCount", 0),
        "output": usage.get("candidatesTokenCount", 0) + thoughts,
        "reasoning": thoughts,
        "total": usage["totalTokenCount"],
    }
