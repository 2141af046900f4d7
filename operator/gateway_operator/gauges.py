"""How much there is of everything in this process, counted when Prometheus asks.

Used by `compose`. What is asked costs a moment for each task in memory, and nothing in between.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway_core.api.resource import Object
from gateway_core.api.task import TERMINAL_PHASES
from gateway_core.api.times import parse_time
from gateway_core.concurrency import FairSemaphore
from gateway_operator.batches.controller import BatchController
from gateway_operator.billing.aggregator import UsageAggregator
from gateway_operator.callbacks.limiter import Lanes
from gateway_operator.heartbeat import Heartbeat
from gateway_operator.tasks.cache import TaskCache
from gateway_operator.workqueue import WorkQueue

PENDING = "Pending"
"""What a task without a phase is called: nobody has taken it in yet."""


@dataclass(frozen=True, slots=True)
class Counted:
    """The parts that are asked."""

    live: TaskCache
    queue: WorkQueue
    folding: UsageAggregator
    copies: FairSemaphore
    lanes: Lanes
    heartbeat: Heartbeat
    batches: BatchController


class Gauges(Collector):
    """Gauges of the parts of the operator."""

    def __init__(self, parts: Counted, now: Callable[[], datetime]) -> None:
        self._parts = parts
        self._now = now

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """The names, without figures."""
        return _make_gauges().values()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """What there is now."""
        gauges, parts = _make_gauges(), self._parts
        self._count_tasks(gauges)
        queue = gauges["gateway_work_queue_tasks"]
        queue.add_metric(("working",), len(parts.queue))
        queue.add_metric(("scheduled",), parts.queue.scheduled)
        queue.add_metric(("failing",), parts.queue.failing)
        gauges["gateway_usage_fold_waiting"].add_metric((), parts.folding.waiting)
        gauges["gateway_copies_waiting"].add_metric((), parts.copies.waiting)
        gauges["gateway_copies_running"].add_metric((), parts.copies.held)
        gauges["gateway_callbacks_waiting"].add_metric((), parts.lanes.waiting)
        gauges["gateway_callbacks_running"].add_metric((), parts.lanes.running)
        batches = gauges["gateway_batches"]
        batches.add_metric(("running",), parts.batches.running)
        batches.add_metric(("other",), max(0, parts.batches.open - parts.batches.running))
        checkpoint = gauges["gateway_batch_checkpoint_age_seconds"]
        checkpoint.add_metric((), parts.batches.oldest_checkpoint)
        gauges["gateway_feed_heartbeat_age_seconds"].add_metric((), parts.heartbeat.age)
        return gauges.values()

    def _count_tasks(self, gauges: dict[str, GaugeMetricFamily]) -> None:
        now = self._now()
        counts = dict.fromkeys((PENDING, "Submitting", "Running", "Completed", "Failed"), 0)
        oldest: dict[str, str] = {}
        overdue = 0
        for obj in self._parts.live.objects():
            phase = (obj.get("status") or {}).get("phase") or PENDING
            # what kubectl may have written there is no label
            phase = phase if phase in counts else PENDING
            counts[phase] += 1
            created = obj["metadata"]["creationTimestamp"]
            # such times are ordered as texts are
            oldest[phase] = min(created, oldest.get(phase, created))
            overdue += phase not in TERMINAL_PHASES and _deadline(obj) < now
        for phase, count in counts.items():
            age = (now - parse_time(oldest[phase])).total_seconds() if count else 0.0
            gauges["gateway_tasks"].add_metric((phase,), count)
            gauges["gateway_task_oldest_age_seconds"].add_metric((phase,), max(0.0, age))
        gauges["gateway_tasks_overdue"].add_metric((), overdue)


def _deadline(obj: Object) -> datetime:
    seconds = obj["spec"].get("deadlineSeconds", 3600)
    return parse_time(obj["metadata"]["creationTimestamp"]) + timedelta(seconds=seconds)


def _make_gauges() -> dict[str, GaugeMetricFamily]:
    words: tuple[tuple[str, str, tuple[str, ...]], ...] = (
        (
            "gateway_tasks",
            "Open tasks by phase; Completed and Failed ones wait for their callback, archiving or"
            " charge.",
            ("phase",),
        ),
        ("gateway_task_oldest_age_seconds", "Age of the oldest task in a phase.", ("phase",)),
        ("gateway_tasks_overdue", "Unfinished tasks after their deadline.", ()),
        (
            "gateway_work_queue_tasks",
            "Tasks in the work queue: working, scheduled for later, or failing (the last attempt"
            " failed; also scheduled).",
            ("state",),
        ),
        (
            "gateway_usage_fold_waiting",
            "Ended tasks whose charge waits to be added to the usage.",
            (),
        ),
        ("gateway_copies_waiting", "Outputs that wait for a copy slot.", ()),
        ("gateway_copies_running", "Running copies of outputs.", ()),
        ("gateway_callbacks_waiting", "Callback attempts that wait for a free slot.", ()),
        ("gateway_callbacks_running", "Running callback attempts.", ()),
        (
            "gateway_batches",
            "Open batches: running, or other (validating, finalizing, ending or waiting).",
            ("state",),
        ),
        (
            "gateway_batch_checkpoint_age_seconds",
            "Age of the oldest batch result that is not stored yet; 0 without one.",
            (),
        ),
        (
            "gateway_feed_heartbeat_age_seconds",
            "Time since kopf's watch last showed this replica's heartbeat, normally at most 10 s;"
            " infinite before the first.",
            (),
        ),
    )
    return {name: GaugeMetricFamily(name, text, labels=labels) for name, text, labels in words}
