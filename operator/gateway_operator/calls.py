"""Calls to providers as they are counted, timed and traced; used by the steps that make them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from gateway_core.contract.task import GatewayTask
from gateway_core.ports.tracing import Span, SpanKind
from gateway_core.ports.upstream import (
    OutputRejected,
    UpstreamBusy,
    UpstreamDenied,
    UpstreamError,
    UpstreamGone,
    UpstreamRejected,
    UpstreamUnclear,
)
from gateway_operator.metrics import Metrics
from gateway_operator.tasktraces import TaskTraces

_OUTCOMES: dict[type[UpstreamError], str] = {
    UpstreamRejected: "rejected",
    OutputRejected: "rejected",
    UpstreamBusy: "busy",
    UpstreamDenied: "denied",
    UpstreamUnclear: "unclear",
    UpstreamGone: "gone",
}


class UpstreamCalls:
    """Goes around each call."""

    def __init__(self, metrics: Metrics, traces: TaskTraces) -> None:
        self._metrics = metrics
        self._traces = traces

    @contextmanager
    def watch(self, task: GatewayTask, provider: str, call: str) -> Iterator[Span]:
        """Around one call, e.g. `submit`; the span is its own."""
        span = self._traces.begin(task, call, kind=SpanKind.CLIENT)
        span.tell({"gateway.provider": provider})
        with span, self.time(provider, call):
            yield span

    @contextmanager
    def time(self, provider: str, call: str) -> Iterator[None]:
        """The same without a span."""
        outcome, began = "cut_short", time.perf_counter()
        try:
            yield
            outcome = "ok"
        except UpstreamError as error:
            outcome = name_outcome(error)
            raise
        finally:
            self._metrics.count_call(provider, call, outcome, time.perf_counter() - began)


def name_outcome(error: UpstreamError) -> str:
    """The word for how a call failed."""
    return next((_OUTCOMES[base] for base in type(error).__mro__ if base in _OUTCOMES), "unclear")
