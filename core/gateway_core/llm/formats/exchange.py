"""A call as it is made to a provider of any format, and what its answer becomes for the client."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway_core.llm.formats import chat_to_google, google_to_chat, responses_to_chat
from gateway_core.llm.formats.answers import complete_answer, parse_answer
from gateway_core.llm.formats.bodies import google_path, to_upstream
from gateway_core.llm.formats.calls import (
    Format,
    InvalidAnswer,
    LlmCall,
    TokenUsage,
    as_object,
    as_objects,
)
from gateway_core.llm.formats.chat_from_google import ChatFromGoogle, to_completion
from gateway_core.llm.formats.chat_stream import ChatStream
from gateway_core.llm.formats.client_tools import ClientTools
from gateway_core.llm.formats.google_from_chat import GoogleFromChat, to_generated
from gateway_core.llm.formats.google_stream import GoogleStream
from gateway_core.llm.formats.media import draws_pictures, move_media
from gateway_core.llm.formats.names import NameRestorer, replace_names, restore_names
from gateway_core.llm.formats.responses_from_chat import ECHOED, ResponsesFromChat, to_response
from gateway_core.llm.formats.responses_stream import ResponsesStream
from gateway_core.llm.formats.streams import LlmStream
from gateway_core.llm.formats.thoughts import settle_thoughts
from gateway_core.llm.formats.translated import ChunkTranslator, TranslatedStream
from gateway_core.llm.formats.translation import refuse
from gateway_core.llm.formats.writers import ChatWriter, GoogleWriter, ResponsesWriter, Writer

_MOST_BRACKETS = 200
"""An answer with fewer can be encoded, also with the levels that a translation adds."""
_PATHS = {Format.CHAT: "/chat/completions", Format.RESPONSES: "/responses"}


@dataclass(slots=True)
class Exchange:
    """What is sent to a provider of the format `upstream`, below its base URL, and how to read it.

    A base URL ends with the version segment, such as `/v1`. `created` is the time of the call in
    Unix seconds.
    """

    call: LlmCall
    upstream: Format
    path: str
    body: dict[str, Any]
    created: int
    most_calls: int | None = None
    """Most function calls in an answer of Google, which cannot be told the limit."""
    dropped: Sequence[str] = ()
    """What the client asked for and the provider is not asked for: fields, and tools by type."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The client's names of functions, by those that the provider is told instead."""
    tools: ClientTools | None = None
    """The tools of a Responses request that is translated."""
    functions: Collection[str] = ()
    """The names of the functions that a provider of chat is told."""

    def drop_bodies(self, *, is_final: bool = True) -> None:
        """Keep nothing of the prompt, which may be large, but what the response repeats of it.

        Unless `is_final` keep the client's body, for another provider.
        """
        self.body = {}
        if not is_final:
            return
        echoed = {}
        if self.tools is not None:
            self.tools.drop_functions()
            body = self.call.body
            echoed = {name: body[name] for name in ECHOED if name in body}
        self.call.body = echoed

    def complete(self, raw: bytes) -> tuple[dict[str, Any], TokenUsage]:
        """Return the client's answer and its usage, from a whole answer of the provider.

        Raises InvalidAnswer, and ReportedError where it is an error or its reason of the end is.
        """
        try:
            document, usage = self._complete(raw)
            if raw.count(b"[") + raw.count(b"{") > _MOST_BRACKETS:
                # few answers have so many, of which fewer are levels
                orjson.dumps(document)
        except orjson.JSONEncodeError as error:
            raise InvalidAnswer("The answer is nested too deeply.") from error
        return document, usage

    def _complete(self, raw: bytes) -> tuple[dict[str, Any], TokenUsage]:
        document = parse_answer(raw)
        usage = complete_answer(self.call, document, self.upstream)
        model_id = self.call.model_id
        if self.upstream is Format.GOOGLE:
            restore_names(document, self.names)
        match self.call.format, self.upstream:
            case Format.CHAT, Format.GOOGLE:
                document = to_completion(document, model_id, self.created, self.most_calls)
            case Format.GOOGLE, Format.CHAT:
                document = to_generated(document, model_id)
                restore_names(document, self.names)
            case Format.RESPONSES, Format.CHAT | Format.GOOGLE:
                if self.upstream is Format.GOOGLE:
                    document = to_completion(document, model_id, self.created, self.most_calls)
                assert self.tools is not None
                keeps = self.upstream is Format.CHAT
                document = to_response(
                    document, self.call.body, model_id, self.created, self.tools, keeps_field=keeps
                )
        return document, usage

    def open_stream(self) -> LlmStream:
        """Return the client's stream, to be fed with the provider's."""
        call = self.call
        match call.format, self.upstream:
            case Format.CHAT, Format.CHAT:
                return ChatStream(call.model_id, self.functions, include_usage=call.include_usage)
            case Format.RESPONSES, Format.RESPONSES:
                return ResponsesStream(call.model_id, self.created)
            case Format.GOOGLE, Format.GOOGLE:
                return GoogleStream(call.model_id, event_stream=call.event_stream)
        translators: list[ChunkTranslator] = []
        if self.upstream is Format.GOOGLE:
            if self.names:
                translators.append(NameRestorer(self.names))
            translators.append(
                ChatFromGoogle(
                    call.model_id,
                    self.created,
                    include_usage=call.include_usage,
                    most_calls=self.most_calls,
                )
            )
        if call.format is Format.RESPONSES:
            assert self.tools is not None
            keeps = self.upstream is Format.CHAT
            translators.append(
                ResponsesFromChat(
                    call.body, call.model_id, self.created, self.tools, keeps_field=keeps
                )
            )
        elif call.format is Format.GOOGLE:
            translators.append(GoogleFromChat(call.model_id))
            if self.names:
                translators.append(NameRestorer(self.names))
        writer = open_writer(call, self.created)
        return TranslatedStream(self.upstream, translators, writer, self.functions)


def open_writer(call: LlmCall, created: int) -> Writer:
    """Return the writer of a stream for the client, at the time `created` in Unix seconds."""
    match call.format:
        case Format.CHAT:
            return ChatWriter()
        case Format.RESPONSES:
            return ResponsesWriter(call.model_id, created)
        case Format.GOOGLE:
            return GoogleWriter(event_stream=call.event_stream)


def plan_exchange(call: LlmCall, upstream: Format, upstream_model: str, created: int) -> Exchange:
    """Return the exchange of a call with a provider that calls its model `upstream_model`.

    The call's files must be inlined. InvalidRequest names a field that the provider's format
    cannot express.
    """
    dropped = list(call.dropped)
    names: Mapping[str, str] = {}
    body, tools = call.body, None
    if call.format is not upstream:
        if call.format is Format.RESPONSES:
            tools = ClientTools(body)
            dropped += tools.dropped
        body, names = _translate(call, upstream, tools, dropped)
    elif upstream is Format.CHAT and draws_pictures(body):
        # another provider may have drawn them, in a field that this one refuses
        body = move_media(body)
    path = (
        google_path(upstream_model, stream=call.stream)
        if upstream is Format.GOOGLE
        else _PATHS[upstream]
    )
    body = settle_thoughts(body, upstream, upstream_model)
    sent = to_upstream(body, upstream, upstream_model, stream=call.stream)
    most_calls = 1 if call.body.get("parallel_tool_calls") is False else None
    functions = _list_functions(sent) if upstream is Format.CHAT else ()
    return Exchange(
        call, upstream, path, sent, created, most_calls, dropped, names, tools, functions
    )


def _list_functions(body: Mapping[str, Any]) -> list[str]:
    """Return the names of the functions in a chat body."""
    functions = (
        as_object(tool.get("function") or tool.get("custom"))
        for tool in as_objects(body.get("tools"))
    )
    return [name for each in functions if isinstance(name := each.get("name"), str)]


def _translate(
    call: LlmCall, upstream: Format, tools: ClientTools | None, dropped: list[str]
) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """Return the body, and the client's names of functions by those in it."""
    body = call.body
    if upstream is Format.RESPONSES:
        raise refuse("model", "is served only by a provider of the Responses format")
    if tools is not None:
        body = responses_to_chat.to_chat(body, tools, dropped)
    elif call.format is Format.GOOGLE:
        body = google_to_chat.to_chat(body, dropped)
    names: Mapping[str, str] = {}
    if Format.GOOGLE in (call.format, upstream):
        body, names = replace_names(body, upstream)
    if upstream is Format.GOOGLE:
        return chat_to_google.to_google(body, dropped), names
    return move_media(body), names
