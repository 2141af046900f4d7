"""The beginning of an answer: a stream is held until it shows output (contract §7.4)."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from gateway_core.api.model import Route
from gateway_core.fair_semaphore import HeldUnits
from gateway_core.llm.formats.calls import TokenUsage
from gateway_core.llm.formats.exchange import Exchange
from gateway_core.llm.formats.sse import StreamFailed
from gateway_core.llm.formats.streams import LlmStream
from gateway_core.llm.metrics import CallTimes
from gateway_core.llm.priced import PricedCall
from gateway_core.llm.upstream import LlmUpstream, SentCall
from gateway_core.observability.tracing import Span

MOST_HELD_BYTES = 1024 * 1024
"""Frames without output that are held of a stream; with more of them it counts as begun."""


@dataclass(slots=True)
class WholeAnswer:
    """An answer without a stream, for the client; `is_large` in its bytes."""

    document: dict[str, Any]
    usage: TokenUsage
    is_large: bool


@dataclass(slots=True)
class OpenCall:
    """A call that a provider answers; close `sent` in the end.

    `is_final`: no other provider is tried, so nothing of the prompt is needed. The answer is
    `whole`, or a `stream` that goes on after the frames that were `held`.
    """

    priced: PricedCall
    exchange: Exchange
    sent: SentCall
    upstream: LlmUpstream
    route: Route
    span: Span
    is_final: bool
    whole: WholeAnswer | None = None
    stream: LlmStream | None = None
    held: bytes = b""
    failure: StreamFailed | None = None
    """How a stream failed that had output before, of which the client has seen nothing yet."""

    async def begin_stream(self, note_begun: Callable[[], None]) -> None:
        """Hold the frames for the client up to the first one with output, or to the stream's end.

        `note_begun` is called when bytes have come. Raises UpstreamError and StreamFailed.
        """
        response, stream = self.sent.response, self.exchange.open_stream()
        self.stream = stream
        try:
            while not (
                stream.has_output or stream.is_done or stream.ended or self._holds_much(stream)
            ):
                data = response.take()
                if data:
                    note_begun()
                    self.held += stream.feed(data)
                elif response.is_whole:
                    self.held += stream.finish()
                    return
                else:
                    await response.wait()
        except StreamFailed as error:
            # the choice does not depend on how the provider's bytes were cut
            if not stream.has_output:
                raise
            self.held += error.sent
            error.sent = b""
            self.failure = error

    def _holds_much(self, stream: LlmStream) -> bool:
        return len(self.held) + stream.waiting_bytes > MOST_HELD_BYTES


@dataclass(slots=True)
class CallContext:
    """What all attempts at a call share: the times that they note, and how one begins.

    `held` has the memory of what is fetched for the call.
    """

    account: str
    times: CallTimes
    held: HeldUnits
    begin: "Begin"


Begin = Callable[[OpenCall], Awaitable[None]]
"""Waits for the output of a call that is answered with 2xx.

Raises UpstreamError, StreamFailed or InvalidAnswer where there is none, so that another provider
may answer.
"""
