"""Gauges of what the process holds at the moment, evaluated when Prometheus scrapes.

A scrape visits each task in memory; between two scrapes the gauges cost nothing.
"""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway_core.api.resource import Object
from gateway_core.api.task import PENDING, PHASES, TERMINAL_PHASES, name_phase
from gateway_core.api.times import parse_time
from gateway_operator.batches.controller import BatchController
from gateway_operator.billing.aggregator import UsageAggregator
from gateway_operator.callbacks.client import CallbackClient
from gateway_operator.health import Heartbeat
from gateway_operator.tasks.calls import Outputs
from gateway_operator.tasks.controller import TaskController

_HELP: dict[str, tuple[str, tuple[str, ...]]] = {
    "gateway_tasks": (
        "Open tasks by phase; Completed and Failed ones wait for their callback,"
        " archiving or charge.",
        ("phase",),
    ),
    "gateway_task_oldest_age_seconds": ("Age of the oldest task in a phase.", ("phase",)),
    "gateway_tasks_overdue": ("Unfinished tasks after their deadline.", ()),
    "gateway_work_queue_tasks": (
        "Tasks in the work queue: working, scheduled for later, or failing (the last"
        " attempt failed; also scheduled).",
        ("state",),
    ),
    "gateway_usage_fold_waiting": ("Ended tasks whose charge waits to be added to the usage.", ()),
    "gateway_copies_waiting": ("Outputs that wait for a copy slot.", ()),
    "gateway_copies_running": ("Running copies of outputs.", ()),
    "gateway_callbacks_waiting": ("Callback attempts that wait for a free slot.", ()),
    "gateway_callbacks_running": ("Running callback attempts.", ()),
    "gateway_batches": (
        "Open batches: running, or other (validating, finalizing, ending or waiting).",
        ("state",),
    ),
    "gateway_batch_checkpoint_age_seconds": (
        "Age of the oldest batch result that is not stored yet; 0 without one.",
        (),
    ),
    "gateway_feed_heartbeat_age_seconds": (
        "Time since kopf's watch last showed this replica's heartbeat, normally at most"
        " 10 s; infinite before the first.",
        (),
    ),
}


class Gauges(Collector):
    """Gauges of the operator's parts."""

    def __init__(
        self,
        tasks: TaskController,
        batches: BatchController,
        aggregator: UsageAggregator,
        outputs: Outputs,
        callbacks: CallbackClient,
        heartbeat: Heartbeat,
        now: Callable[[], datetime],
    ) -> None:
        self._tasks = tasks
        self._batches = batches
        self._aggregator = aggregator
        self._outputs = outputs
        self._callbacks = callbacks
        self._heartbeat = heartbeat
        self._now = now

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Return the families without samples."""
        return _make_families().values()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the families with the samples of now."""
        gauges, queue, batches = _make_families(), self._tasks.queue, self._batches
        self._count_tasks(gauges)
        states = gauges["gateway_work_queue_tasks"]
        states.add_metric(("working",), len(queue))
        states.add_metric(("scheduled",), queue.scheduled)
        states.add_metric(("failing",), queue.failing)
        gauges["gateway_usage_fold_waiting"].add_metric((), self._aggregator.waiting)
        copies, attempts = self._outputs.places, self._callbacks.limiter
        gauges["gateway_copies_waiting"].add_metric((), copies.waiting)
        gauges["gateway_copies_running"].add_metric((), copies.held)
        gauges["gateway_callbacks_waiting"].add_metric((), attempts.waiting)
        gauges["gateway_callbacks_running"].add_metric((), attempts.running)
        open_batches = gauges["gateway_batches"]
        open_batches.add_metric(("running",), batches.running)
        open_batches.add_metric(("other",), max(0, batches.open - batches.running))
        checkpoint = gauges["gateway_batch_checkpoint_age_seconds"]
        checkpoint.add_metric((), batches.oldest_checkpoint)
        gauges["gateway_feed_heartbeat_age_seconds"].add_metric((), self._heartbeat.age)
        return gauges.values()

    def _count_tasks(self, gauges: dict[str, GaugeMetricFamily]) -> None:
        now = self._now()
        counts = dict.fromkeys(PHASES, 0)
        oldest: dict[str, str] = {}
        overdue = 0
        for obj in self._tasks.cache.objects():
            phase = name_phase(obj.get("status") or {})
            # an unknown phase, e.g. written with kubectl, must not become a label
            phase = phase if phase in counts else PENDING
            counts[phase] += 1
            created = obj["metadata"]["creationTimestamp"]
            # times of this form sort as text
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


def _make_families() -> dict[str, GaugeMetricFamily]:
    return {
        name: GaugeMetricFamily(name, text, labels=labels) for name, (text, labels) in _HELP.items()
    }
