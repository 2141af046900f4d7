"""Calls of each dialect as the gateway reads them, and their exchanges with an upstream."""

from collections.abc import Mapping
from typing import Any

from gateway_core.api.price import Price
from gateway_core.llm.formats.calls import Format, LlmCall, encode_body
from gateway_core.llm.formats.exchange import Exchange, plan_exchange
from gateway_core.llm.formats.requests import read_chat, read_generate, read_responses
from gateway_core.providers.catalog import Model
from gateway_core.tasks.operations import CHAT

PRICE = Price.model_validate(
    {"inputPerMillionMicros": 1_000_000, "outputPerMillionMicros": 1_000_000}
)
MODEL = Model("acme/m", CHAT, "acme", {}, (PRICE,), (), 60, output_token_limit=100)
USER: dict[str, Any] = {"role": "user", "content": "hi"}
BODIES: dict[Format, dict[str, Any]] = {
    Format.CHAT: {"model": "m", "messages": [USER]},
    Format.RESPONSES: {"model": "m", "input": "hi"},
    Format.GOOGLE: {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]},
}


def read_body(
    format_: Format, body: Mapping[str, Any], size: int, *, stream: bool = False
) -> LlmCall:
    """The call of a body of `size` bytes; `stream` is that of Google, which has it in the path."""
    match format_:
        case Format.CHAT:
            return read_chat(body, size)
        case Format.RESPONSES:
            return read_responses(body, size)
        case Format.GOOGLE:
            return read_generate(body, size, model_id="m", stream=stream)


def read(format_: Format, *, stream: Any = ..., **changes: Any) -> LlmCall:
    """A short call with changed fields; a field that is `...` is left out."""
    streams = {} if format_ is Format.GOOGLE else {"stream": stream}
    changed = BODIES[format_] | streams | changes
    body = {name: value for name, value in changed.items() if value is not ...}
    return read_body(format_, body, len(encode_body(body)), stream=stream is True)


def exchange(format_: Format, upstream: Format, **changes: Any) -> Exchange:
    """The exchange of such a call with the model "up", at the time 5."""
    return plan_exchange(read(format_, **changes), upstream, "up", 5)


def translate(format_: Format, upstream: Format, **changes: Any) -> dict[str, Any]:
    """The body that is sent to an upstream for such a call."""
    return exchange(format_, upstream, **changes).body
