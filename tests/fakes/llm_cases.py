"""Streaming calls of each dialect, with a provider's whole stream that answers them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gateway_core.llm.formats.calls import Format
from gateway_core.llm.formats.exchange import plan_exchange
from gateway_core.llm.formats.requests import read_chat, read_generate, read_responses
from gateway_core.llm.formats.sse import DONE
from gateway_core.llm.formats.streams import LlmStream
from tests.fakes.llm_streams import chat_chunks, google_chunks, responses_events, write_frames
from tests.servers import llm_dialects
from tests.servers.llm_dialects import ReadStream

TEXTS = ("Hé", 'llo "b"\n', "wor", "ld end")
MESSAGES = [{"role": "user", "content": "hi"}]


@dataclass(frozen=True)
class Case:
    """A call, and the whole stream of a provider of one format that answers it."""

    upstream: Format
    wire: bytes
    body: dict[str, Any]
    read: Callable[[bytes], ReadStream]
    event_stream: bool = True

    @property
    def target(self) -> tuple[str, str]:
        if self.read is llm_dialects.read_responses:
            return "/v1/responses", ""
        if "contents" in self.body:
            return "/v1beta/models/m:streamGenerateContent", "alt=sse" if self.event_stream else ""
        return "/v1/chat/completions", ""

    def open(self) -> LlmStream:
        match self.read:
            case llm_dialects.read_responses:
                call = read_responses(self.body, 9)
            case llm_dialects.read_google | llm_dialects.read_google_array:
                call = read_generate(
                    self.body, 9, model_id="m", stream=True, event_stream=self.event_stream
                )
            case _:
                call = read_chat(self.body, 9)
        return plan_exchange(call, self.upstream, "up", 5).open_stream()


def read_chat_usage(body: bytes) -> ReadStream:
    return llm_dialects.read_chat(body, include_usage=True)


CHAT = {"model": "m", "stream": True, "messages": MESSAGES}
WITH_USAGE = CHAT | {"stream_options": {"include_usage": True}}
RESPONSES = {"model": "m", "stream": True, "input": "hi"}
GOOGLE = {"contents": [{"parts": [{"text": "hi"}]}]}
OF_CHAT = write_frames(chat_chunks(*TEXTS)) + DONE
OF_RESPONSES = write_frames(responses_events(*TEXTS), named=True)
OF_GOOGLE = write_frames(google_chunks(*TEXTS))
READERS = (
    (CHAT, llm_dialects.read_chat),
    (WITH_USAGE, read_chat_usage),
    (RESPONSES, llm_dialects.read_responses),
    (GOOGLE, llm_dialects.read_google),
    (GOOGLE, llm_dialects.read_google_array),
)
CASES = {
    f"{read.__name__.removeprefix('read_')}-of-{upstream}": Case(
        upstream, wire, body, read, read is not llm_dialects.read_google_array
    )
    for upstream, wire in ((Format.CHAT, OF_CHAT), (Format.GOOGLE, OF_GOOGLE))
    for body, read in READERS
} | {
    "responses-of-responses": Case(
        Format.RESPONSES, OF_RESPONSES, RESPONSES, llm_dialects.read_responses
    ),
    "google-with-CRLF": Case(
        Format.GOOGLE, OF_GOOGLE.replace(b"\n", b"\r\n"), GOOGLE, llm_dialects.read_google
    ),
}
