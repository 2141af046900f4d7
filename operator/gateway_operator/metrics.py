"""What the operator counts, for Prometheus; served on the health port."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gateway_core.contract.conditions import Reason


class Metrics:
    """Counters of the task controller, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._ends = Counter(
            "gateway_tasks_ended_total", "Tasks that ended.", ["reason"], registry=self.registry
        )
        self._calls = Counter(
            "gateway_upstream_calls_total",
            "Calls to providers by kind and outcome.",
            ["provider", "call", "outcome"],
            registry=self.registry,
        )
        self.live = Gauge("gateway_tasks_live", "Tasks being worked on.", registry=self.registry)
        self._shards = Gauge(
            "gateway_shard_owned",
            "1 for each shard that is worked here.",
            ["shard"],
            registry=self.registry,
        )
        self.repairs = Counter(
            "gateway_watch_repairs_total",
            "Objects that a comparison with the record had to mend.",
            registry=self.registry,
        )
        self.stray_holds = Counter(
            "gateway_stray_holds_total",
            "Holds ended by the sweeper instead of their task's end.",
            registry=self.registry,
        )
        self._notices = Counter(
            "gateway_notices_total",
            "Notices of providers by what they came to.",
            ["outcome"],
            registry=self.registry,
        )
        self.folded = Counter(
            "gateway_tasks_folded_total",
            "Ended tasks whose charge was folded into usage.",
            registry=self.registry,
        )
        self.folded_calls = Counter(
            "gateway_calls_folded_total",
            "Calls of the usage journal that were folded into usage.",
            registry=self.registry,
        )
        self.journal_objects = Gauge(
            "gateway_journal_objects",
            "Objects of the usage journal that were not folded yet, as of the last look.",
            registry=self.registry,
        )
        self.removed = Counter(
            "gateway_tasks_removed_total",
            "Finished tasks that retention removed.",
            registry=self.registry,
        )
        self.finished = Gauge(
            "gateway_tasks_finished",
            "Finished tasks that are kept, as of the last look.",
            registry=self.registry,
        )
        self.duration = Histogram(
            "gateway_task_seconds",
            "From creation to the terminal state.",
            buckets=(1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600),
            registry=self.registry,
        )

        self._attempts = Counter(
            "gateway_callback_attempts_total",
            "Attempts at callbacks, by the state that each left: Delivered, Pending (it failed and"
            " is repeated), Undelivered.",
            ["state"],
            registry=self.registry,
        )
        self.delivery = Histogram(
            "gateway_callback_seconds",
            "From the terminal state to the delivery of its callback.",
            buckets=(0.1, 0.5, 1, 2, 5, 10, 60, 600, 3600, 36000),
            registry=self.registry,
        )

    def show_shards(self, numbers: Iterable[int]) -> None:
        """Tells which shards are worked here from now on."""
        self._shards.clear()
        for number in numbers:
            self._shards.labels(str(number)).set(1)

    def count_end(self, reason: Reason) -> None:
        """Counts a task's end."""
        self._ends.labels(reason.value).inc()

    def count_notice(self, outcome: str) -> None:
        """Counts a notice: `taken`, `held up` or `for nothing`."""
        self._notices.labels(outcome).inc()

    def count_attempt(self, state: str) -> None:
        """Counts an attempt at a callback."""
        self._attempts.labels(state).inc()

    def count_call(self, provider: str, call: str, outcome: str) -> None:
        """Counts a call to a provider."""
        self._calls.labels(provider, call, outcome).inc()
