"""Prometheus metrics of LLM calls, by model and provider: both are names that an admin chose."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway_core.concurrency import WaitLimit
from gateway_core.llm.formats.calls import TokenUsage
from gateway_core.observability.distribution import Distribution
from gateway_core.observability.tracing import NO_SPAN, Span
from gateway_core.providers.catalog import Model
from gateway_core.providers.health import Figures, HealthTally
from gateway_core.providers.upstream import UpstreamDenied, UpstreamError, UpstreamRejected

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160)
_OVERHEAD = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5)
_SPEEDS = (1, 5, 10, 20, 40, 80, 160, 320, 640)
_LABELS = ("model", "provider")
_OUTCOMES = ("completed", "failed", "client_gone")
_KINDS = ("input", "cached", "output", "reasoning")


@dataclass(slots=True)
class CallTimes:
    """Moments of a call in seconds of one monotonic clock; 0 where it did not get that far.

    `sent` is when the provider that answers is called; `first` when the first output went to the
    client. `reached`: some provider was called. `abandoned` is what models cost that the client did
    not wait for, in micro-dollars. `is_silent`: the last provider called has read the prompt, and
    said nothing in its time. `limit` is the client's on the first byte of the present provider.
    """

    began: float
    sent: float = 0.0
    first: float = 0.0
    ended: float = 0.0
    reached: bool = False
    parent: Span = NO_SPAN
    """The span of the request, below which each attempt has one."""
    abandoned: int = 0
    is_silent: bool = False
    limit: WaitLimit | None = None

    def note_begun(self) -> None:
        """Note that the first byte of an answer has come."""
        if self.limit is not None:
            self.limit.stop()
            self.limit = None

    def note_sent(self) -> None:
        """Note that a provider is called now."""
        self.sent = time.monotonic()
        self.reached = True
        self.is_silent = False

    def note_failure(self, *, is_silent: bool = False) -> None:
        """Note that the provider has failed: the client does not pay for that attempt, unless it is
        the last one, and the provider `is_silent`."""
        self.sent = 0.0
        self.is_silent = is_silent


class _Series:
    """Figures of one model at one provider, as plain numbers: a call adds to nine of them."""

    __slots__ = ("first", "outcomes", "overhead", "speed", "tokens", "upstream")

    def __init__(self) -> None:
        self.outcomes: dict[str, int] = dict.fromkeys(_OUTCOMES, 0)
        self.tokens: dict[str, int] = dict.fromkeys(_KINDS, 0)
        self.first = Distribution(_SECONDS)
        self.upstream = Distribution(_SECONDS)
        self.overhead = Distribution(_OVERHEAD)
        self.speed = Distribution(_SPEEDS)


class _Calls(Collector):
    """Answered calls, by model and provider."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str], _Series] = {}

    def find(self, model: str, provider: str) -> _Series:
        """Return the figures of a model at a provider."""
        series = self._series.get((model, provider))
        if series is None:
            series = self._series[model, provider] = _Series()
        return series

    def collect(self) -> Iterable[Metric]:
        """Return what was counted so far."""
        calls, tokens, *histograms = families = self.describe()
        for labels, series in self._series.items():
            for outcome, count in series.outcomes.items():
                calls.add_metric((*labels, outcome), count)
            for kind, count in series.tokens.items():
                tokens.add_metric((*labels, kind), count)
            values = series.first, series.upstream, series.overhead, series.speed
            for family, value in zip(histograms, values, strict=True):
                family.add_metric(labels, value.list_buckets(), value.total)
        return families

    def describe(self) -> tuple[Any, ...]:
        """Return the names, without figures."""
        return (
            CounterMetricFamily(
                "gateway_llm_calls_total",
                "LLM calls that a provider answered, by outcome: completed, failed in the middle of"
                " the response, client_gone (it left, or its own time-out passed).",
                labels=(*_LABELS, "outcome"),
            ),
            CounterMetricFamily(
                "gateway_llm_tokens_total",
                "Charged tokens by kind. input includes cached, output includes reasoning.",
                labels=(*_LABELS, "kind"),
            ),
            HistogramMetricFamily(
                "gateway_llm_first_token_seconds",
                "Time from a streaming call's body to its first output, its admission included.",
                labels=_LABELS,
            ),
            HistogramMetricFamily(
                "gateway_llm_upstream_seconds",
                "Time from the request to a provider to the end of its response.",
                labels=_LABELS,
            ),
            HistogramMetricFamily(
                "gateway_llm_overhead_seconds",
                "Time from a call's body to the request to the provider that answered it:"
                " admission, translation and failed attempts.",
                labels=_LABELS,
            ),
            HistogramMetricFamily(
                "gateway_llm_output_tokens_per_second",
                "Output tokens of a completed call by the seconds since its first output, or since"
                " its request if it did not stream.",
                labels=_LABELS,
            ),
        )


class LlmMetrics:
    """One process's counters in `registry`, and its figures for the status of objects."""

    def __init__(self, registry: CollectorRegistry, health: HealthTally | None = None) -> None:
        self._health = health or HealthTally()
        self._calls = _Calls()
        registry.register(self._calls)
        self.failures = Counter(
            "gateway_llm_attempt_failures_total",
            "Attempts at a provider that failed before the first output of a response, by error;"
            " another provider of the model was tried, if there was one.",
            (*_LABELS, "error"),
            registry=registry,
        )
        self.lookups = Counter(
            "gateway_llm_cache_lookups_total",
            "Look-ups of LLM calls in the cache of answers, by outcome: hit, miss. A store that"
            " does not reply is a miss.",
            ("model", "outcome"),
            registry=registry,
        )
        self.beyond_bound = Counter(
            "gateway_llm_calls_beyond_bound_total",
            "Calls for which a provider reported more tokens than were reserved; the rest is not"
            " charged. The model's outputTokenLimit or inputTokenLimit may be too low.",
            ("model",),
            registry=registry,
        )

    def count_failure(self, model: Model, provider: str, error: UpstreamError) -> None:
        """Count a failed attempt, by the name of its error."""
        self.failures.labels(model.model_id, provider, type(error).__name__).inc()
        if not isinstance(error, UpstreamRejected):
            denied = isinstance(error, UpstreamDenied)
            self._health.providers[provider].note_failure(denied=denied)

    def count_unanswered(self, model: Model) -> None:
        """Count a call that no provider of its model answered."""
        self._health.models[model.name].note_failure()

    def count_lookup(self, model: str, *, is_hit: bool) -> None:
        """Count a look-up in the cache of answers."""
        self.lookups.labels(model, "hit" if is_hit else "miss").inc()

    def count_call(
        self, model: Model, provider: str, outcome: str, times: CallTimes, used: TokenUsage
    ) -> None:
        """Count a call that a provider answered; `outcome` is one of `gateway_llm_calls_total`."""
        health = self._health
        self._count_health(health.providers[provider], outcome, times, times.sent)
        self._count_health(health.models[model.name], outcome, times, times.began)
        series = self._calls.find(model.model_id, provider)
        series.outcomes[outcome] += 1
        series.upstream.observe(times.ended - times.sent)
        series.overhead.observe(times.sent - times.began)
        if times.first:
            series.first.observe(times.first - times.began)
        seconds = times.ended - (times.first or times.sent)
        if outcome == "completed" and used.output and seconds > 0:
            series.speed.observe(used.output / seconds)
        tokens = series.tokens
        tokens["input"] += used.input
        tokens["output"] += used.output
        tokens["cached"] += used.cached
        tokens["reasoning"] += used.reasoning

    @staticmethod
    def _count_health(figures: Figures, outcome: str, times: CallTimes, began: float) -> None:
        if outcome == "completed":
            first = times.first - began if times.first else None
            figures.note_answer(times.ended - began, first)
        elif outcome == "failed":
            figures.note_failure()
        else:
            # the provider was answering; how long it would have taken is unknown
            figures.calls += 1
