"""Response headers of LLM calls: which model and service answered, at what cost, in what time."""

import time
from collections.abc import Sequence
from typing import Literal

from gateway_apiserver.endpoints import HeaderDocs
from gateway_core.api.money import MICROS_PER_DOLLAR
from gateway_core.llm.formats.calls import Format, LlmCall
from gateway_core.llm.metrics import CallTimes
from gateway_core.llm.opening import OpenCall
from gateway_core.providers.catalog import Model
from gateway_web.context import Header, RequestContext
from gateway_web.responses import JSON

_EVENT_STREAM: Sequence[Header] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)
_JSON_STREAM: Sequence[Header] = (JSON, *_EVENT_STREAM[1:])

_MODEL = b"x-gateway-model"
_PROVIDER = b"x-gateway-provider"
_UPSTREAM = b"x-gateway-upstream-ms"
_OVERHEAD = b"x-gateway-overhead-ms"
_COST = b"x-gateway-cost"
_ROUTE = b"x-gateway-route"
_CACHE = b"x-gateway-cache"
_DROPPED = b"x-gateway-dropped"
MOST_DROPPED_BYTES = 1024
HIT: Header = (_CACHE, b"hit")
MISS: Header = (_CACHE, b"miss")

_AND_EARLY = ", and from a stream whose head goes before its first output."
_UNLESS_EARLY = "; absent" + _AND_EARLY.removeprefix(", and")

ShownHeaders = Literal["off", "public", "routes"]
"""`public` shows what the catalog's clients know anyway; `routes` also the name of the route."""


def has_events(call: LlmCall) -> bool:
    """Return whether the call's stream consists of server-sent events."""
    return call.format is not Format.GOOGLE or call.event_stream


def name_dropped(paths: Sequence[str]) -> Header:
    """Return the header that names a call's fields and tools which its provider was not sent."""
    # types of tools are the client's own words
    shown = dict.fromkeys(path for path in paths if path.isascii() and path.isprintable())
    return _DROPPED, ", ".join(shown).encode()[:MOST_DROPPED_BYTES]


def choose_stream_head(call: LlmCall) -> Sequence[Header]:
    """Return the headers of the call's stream."""
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
        first output; the rest since the call's body came is the gateway's.
        """
        now = time.monotonic()
        upstream = (times.ended or now) - times.sent
        own = now - times.began - upstream
        found: list[Header] = [
            (_MODEL, model.model_id.encode()),
            (_PROVIDER, model.service.encode()),
            (_UPSTREAM, b"%.1f" % (1000 * upstream)),
            (_OVERHEAD, b"%.1f" % (1000 * max(0.0, own))),
        ]
        if micros is not None:
            found.append((_COST, b"%d.%06d" % divmod(micros, MICROS_PER_DOLLAR)))
        if self._shows_routes:
            found.append((_ROUTE, opened.route.name.encode()))
        context.headers += found

    def add_cached(self, context: RequestContext, model: Model) -> None:
        """Add the headers of a kept answer, for which no provider was called."""
        context.headers += [
            (_MODEL, model.model_id.encode()),
            (_PROVIDER, model.service.encode()),
            (_COST, b"0.000000"),
        ]


def describe_headers(shown: ShownHeaders, *, has_cache: bool) -> dict[str, HeaderDocs]:
    """Return the headers that successful calls have.

    `has_cache`: some may be answered from the cache.
    """
    milliseconds, text = {"type": "number", "minimum": 0}, {"type": "string", "minLength": 1}
    described: dict[bytes, HeaderDocs] = {
        _DROPPED: HeaderDocs(
            "Fields that the model's provider does not know, left out as the answer means the same"
            " without them, and types of tools that are not offered, where the client has others;"
            " absent where there are none, and from kept answers.",
            text,
        )
    }
    if shown != "off":
        described |= {
            _MODEL: HeaderDocs(f"The model that answered{_UNLESS_EARLY}", text),
            _PROVIDER: HeaderDocs(f"The service of the model, as in prices{_UNLESS_EARLY}", text),
            _COST: HeaderDocs(
                "Charge in US dollars; absent from streams, whose cost is known at their end.",
                {"type": "string", "pattern": r"^[0-9]+\.[0-9]{6}$"},
            ),
            _UPSTREAM: HeaderDocs(
                "Milliseconds from the request to the provider to the end of its answer, for a"
                f" stream to its first output; absent from kept answers{_AND_EARLY}",
                milliseconds,
            ),
            _OVERHEAD: HeaderDocs(
                "The rest of the milliseconds since the call's body; absent from kept"
                f" answers{_AND_EARLY}",
                milliseconds,
            ),
        }
    if shown == "routes":
        described[_ROUTE] = HeaderDocs(
            f"The route in the GatewayModel; absent from kept answers{_AND_EARLY}", text
        )
    if has_cache:
        described[_CACHE] = HeaderDocs(
            "Whether the answer was kept; only for keys with a cache.", {"enum": ["hit", "miss"]}
        )
    return {name.decode(): docs for name, docs in described.items()}


def make_call_headers(shown: ShownHeaders) -> CallHeaders | None:
    """Return the function that adds the headers; None where they are off."""
    return None if shown == "off" else CallHeaders(shown)
