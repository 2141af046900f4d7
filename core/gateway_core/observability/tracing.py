"""Traces: spans of one call or task across processes, named by W3C Trace Context."""

import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Protocol, Self

_SHAPE = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A span in a trace, both in hex, and whether its spans are recorded."""

    trace_id: str
    span_id: str
    sampled: bool

    def __str__(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{int(self.sampled):02x}"


def parse_traceparent(text: str | None) -> TraceContext | None:
    """The context in a header or annotation; None for none, and for whatever is not well formed.

    A later version may have more behind what this one knows.
    """
    match = _SHAPE.fullmatch(text or "")
    if match is None or match[1] == "ff" or (match[1] == "00" and match[5]):
        return None
    if set(match[2]) == {"0"} or set(match[3]) == {"0"}:
        return None
    return TraceContext(match[2], match[3], bool(int(match[4], 16) & _SAMPLED))


Facts = Mapping[str, str | int | float | bool]


class SpanKind(Enum):
    """Whose work a span is."""

    INTERNAL = "internal"
    SERVER = "server"
    CLIENT = "client"


class Span:
    """A piece of work; the base of one that is recorded. This one is not, and tells nobody.

    As a context manager it ends with its block, as failed where that raises.
    """

    __slots__ = ()

    @property
    def context(self) -> TraceContext | None:
        """What others name as their parent; None where nothing is traced."""
        return None

    def child(self, name: str, *, kind: SpanKind = SpanKind.INTERNAL) -> "Span":
        """A span below this one."""
        return self

    def rename(self, name: str) -> None:
        """Gives the span the name that was not known at its beginning."""

    def tell(self, facts: Facts) -> None:
        """Adds attributes."""

    def note(self, event: str, facts: Facts | None = None) -> None:
        """Adds an event, as of now."""

    def fail(self, problem: str) -> None:
        """Marks the span as failed. The text must be clean of secrets."""

    def end(self) -> None:
        """Ends the span."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _: TracebackType | None,
    ) -> None:
        if error is not None:
            # a text may repeat what a caller or a provider has sent
            self.fail(type(error).__name__)
        self.end()


NO_SPAN = Span()


class Tracer(Protocol):
    """Where spans are begun."""

    @property
    def is_on(self) -> bool:
        """Whether anything is traced at all."""
        ...

    def start(
        self,
        name: str,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        parent: TraceContext | None = None,
        link: TraceContext | None = None,
        trace_id: str | None = None,
        facts: Facts | None = None,
    ) -> Span:
        """A span that has begun, below `parent` or on top of a trace.

        `link` is another trace it has to do with; `trace_id` (32 hex digits) names the trace of a
        span without a parent, for those who begin several tops of one.
        """
        ...


class _NoTracer:
    is_on = False

    def start(
        self,
        name: str,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        parent: TraceContext | None = None,
        link: TraceContext | None = None,
        trace_id: str | None = None,
        facts: Facts | None = None,
    ) -> Span:
        """Nothing."""
        return NO_SPAN


NO_TRACER: Tracer = _NoTracer()


_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Whether the environment names a receiver of traces, and does not switch them off."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if environment.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower() != "otlp":
        return False
    return any(environment.get(name, "").strip() for name in _ENDPOINTS)


@asynccontextmanager
async def open_tracer(component: str) -> AsyncIterator[Tracer]:
    """The tracer of the process `component` (`api`, `operator`); what it has is sent at the end."""
    if not is_wanted(os.environ):
        yield NO_TRACER
        return
    from gateway_core.observability.otlp import OtlpTracer

    tracer = OtlpTracer(component)
    try:
        yield tracer
    finally:
        await tracer.close()
