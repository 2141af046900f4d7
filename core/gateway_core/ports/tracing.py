"""Traces: what happened to one call or task, in spans, across processes.

Fulfilled by `adapters.tracing` where tracing is on. Where it is off `NO_TRACER` stands in, which
does nothing and imports nothing.
"""

from collections.abc import Mapping
from enum import Enum
from types import TracebackType
from typing import Protocol, Self

from gateway_core.domain.tracecontext import TraceContext

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
