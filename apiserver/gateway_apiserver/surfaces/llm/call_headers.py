"""Response headers of LLM calls: which model and service answered, at what cost, in what time."""

import time
from collections.abc import Sequence
from typing import Literal

from gateway_core.api.money import MICROS_PER_DOLLAR
from gateway_core.llm.formats.calls import Format, LlmCall
from gateway_core.llm.metrics import CallTimes
from gateway_core.llm.service import OpenCall
from gateway_core.providers.catalog import Model
from gateway_web.context import Header, RequestContext
from gateway_web.responses import JSON

_EVENT_STREAM: Sequence[Header] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)
_JSON_STREAM: Sequence[Header] = (JSON, *_EVENT_STREAM[1:])

ShownHeaders = Literal["off", "public", "routes"]
"""`public` shows what the catalog's clients know anyway; `routes` also the name of the route."""


def has_events(call: LlmCall) -> bool:
    """Whether the call's stream consists of server-sent events."""
    return call.format is not Format.GOOGLE or call.event_stream


def choose_stream_head(call: LlmCall) -> Sequence[Header]:
    """The headers of the call's stream."""
    return _EVENT_STREAM if has_events(call) else _JSON_STREAM


class CallHeaders:
    """Adds `x-gateway-*` headers to responses of answered calls.

    The provider is named by the model's service, as in prices and in `allowed_providers`. The name
    of the GatewayProvider is internal (contract §1.3); a route's name is shown only by `routes`.
    """

    def __init__(self, shown: ShownHeaders) -> None:
        self._shows_routes = shown == "routes"

    def add(
        self,
        context: RequestContext,
        model: Model,
        opened: OpenCall,
        times: CallTimes,
        micros: int | None = None,
    ) -> None:
        """Add the headers, at the head of a stream or, with its cost `micros`, of a whole answer.

        Times are in milliseconds. The provider's ends at the end of its answer, for a stream at its
        head; the rest since the call's body came is the gateway's.
        """
        now = time.monotonic()
        upstream = (times.ended or now) - times.sent
        own = now - times.began - upstream
        found: list[Header] = [
            (b"x-gateway-model", model.model_id.encode()),
            (b"x-gateway-provider", model.service.encode()),
            (b"x-gateway-upstream-ms", b"%.1f" % (1000 * upstream)),
            (b"x-gateway-overhead-ms", b"%.1f" % (1000 * max(0.0, own))),
        ]
        if micros is not None:
            found.append((b"x-gateway-cost", b"%d.%06d" % divmod(micros, MICROS_PER_DOLLAR)))
        if self._shows_routes:
            found.append((b"x-gateway-route", opened.route.name.encode()))
        context.headers += found

    def add_cached(self, context: RequestContext, model: Model) -> None:
        """Add the headers of a kept answer, for which no provider was called."""
        context.headers += [
            (b"x-gateway-model", model.model_id.encode()),
            (b"x-gateway-provider", model.service.encode()),
            (b"x-gateway-cost", b"0.000000"),
        ]


def make_call_headers(shown: ShownHeaders) -> CallHeaders | None:
    """What adds the headers; None where they are off."""
    return None if shown == "off" else CallHeaders(shown)
