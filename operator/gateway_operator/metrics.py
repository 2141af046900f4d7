"""Metrics that the operator counts as things happen, for Prometheus; served on the health port.

State that a scrape evaluates (number of tasks, length of a queue) is in `gauges`.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gateway_core.api.conditions import Reason

_CALLS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TASKS = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
_BATCHES = (5, 30, 60, 300, 900, 3600, 14400, 43200, 86400)
_LAGS = (0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 300)
_DELIVERIES = (0.1, 0.5, 1, 2, 5, 10, 60, 600, 3600, 36000)


class Metrics:
    """Counters of the operator's work, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.record_size = self._gauge(
            "gateway_record_size_bytes",
            "Bytes allocated for the Kubernetes API's database, if its quota is configured.",
        )
        self.record_quota = self._gauge(
            "gateway_record_quota_bytes",
            "Configured quota of the Kubernetes API's database; 0 if not configured.",
        )
        self.record_refusals = self._counter(
            "gateway_record_refusals_total",
            "Writes of this process that the Kubernetes API refused for lack of space.",
        )
        self._ends = self._counter("gateway_tasks_ended_total", "Ended tasks, by reason.", "reason")
        self._durations = self._histogram(
            "gateway_task_duration_seconds",
            "Time from a task's creation to its terminal state, by phase.",
            _TASKS,
            "phase",
        )
        self.submit_delay = self._histogram(
            "gateway_task_submit_delay_seconds",
            "Time from a task's creation until its provider's job is recorded.",
            _TASKS,
        )
        self.detection_lag = self._histogram(
            "gateway_task_detection_lag_seconds",
            "Upper bound of the time from a job's end to its recorded terminal state: from the"
            " last poll that returned running, or the submission, to the write after the copy of"
            " outputs. It includes the poll interval, so the real lag is smaller.",
            _LAGS,
        )
        self.record_delay = self._histogram(
            "gateway_task_record_delay_seconds",
            "Time from the first poll that returned a job's end to its recorded terminal state,"
            " including the copy of outputs.",
            _LAGS,
        )
        self.poll_delay = self._histogram(
            "gateway_poll_delay_seconds",
            "Delay of polls after their scheduled time; a notification schedules one at once.",
            _LAGS,
        )
        self._calls = self._counter(
            "gateway_upstream_calls_total",
            "Calls to providers by outcome: ok, rejected, busy, denied, unclear, gone or"
            " cut_short.",
            "provider",
            "call",
            "outcome",
        )
        self._call_durations = self._histogram(
            "gateway_upstream_call_duration_seconds",
            "Duration of calls to providers, including the wait for a free slot.",
            _CALLS,
            "provider",
            "call",
        )
        self._shards = self._gauge(
            "gateway_shard_owned", "1 for each shard that this process owns.", "shard"
        )
        self.repairs = self._counter(
            "gateway_watch_repairs_total",
            "Objects that a sweep found changed without a watch event.",
        )
        self.stray_holds = self._counter(
            "gateway_stray_holds_total",
            "Reservations ended by the sweep instead of by their task's end.",
        )
        self._oldest_holds = self._gauge(
            "gateway_reservation_oldest_age_seconds",
            "Age of the oldest reservation in this replica's shards as of the last sweep, 0 if"
            " none is older than 2 min; `running` has a running task, `unaccounted` has none.",
            "state",
        )
        self._sweeps = self._gauge(
            "gateway_sweep_last_success_timestamp_seconds",
            "Unix time at which each sweep (repairs, retention, the journal, balances) last"
            " finished without an error, or at which its process started.",
            "sweep",
        )
        self.notices = self._counter(
            "gateway_notices_total",
            "Notifications from providers, by outcome: taken (causes a poll), held_up (poll"
            " later), or useless.",
            "outcome",
        )
        self.aggregated = self._counter(
            "gateway_tasks_folded_total", "Ended tasks whose charge was added to the usage."
        )
        self.aggregated_calls = self._counter(
            "gateway_calls_folded_total", "Calls of the usage journal that were added to the usage."
        )
        self.journal_objects = self._gauge(
            "gateway_journal_objects",
            "Objects of the usage journal that are not in the usage yet, as of the last sweep.",
        )
        self.journals_damaged = self._gauge(
            "gateway_journals_damaged",
            "Processes whose usage journal has an unreadable object, as of the last sweep.",
        )
        self.removed = self._counter(
            "gateway_tasks_removed_total", "Finished tasks removed by retention."
        )
        self.finished = self._gauge(
            "gateway_tasks_finished", "Finished tasks that still exist, as of the last sweep."
        )
        self.work_failures = self._counter(
            "gateway_work_failures_total",
            "Failed reconciliations of a task, file or upload, which are retried.",
        )
        self.attempts = self._counter(
            "gateway_callback_attempts_total",
            "Callback attempts, by resulting state: Delivered, Pending (failed, will be"
            " repeated), Undelivered.",
            "state",
        )
        self.attempt_duration = self._histogram(
            "gateway_callback_attempt_duration_seconds",
            "Duration of callback attempts, from the first byte sent to the receiver's response.",
            _CALLS,
        )
        self.delivery = self._histogram(
            "gateway_callback_delay_seconds",
            "Time from a task's terminal state to the delivery of its callback.",
            _DELIVERIES,
        )

        self.batch_lines = self._counter(
            "gateway_batch_lines_total",
            "Answered requests of batches: completed with a 2xx, failed otherwise.",
            "outcome",
        )
        self._batch_ends = self._counter(
            "gateway_batches_ended_total", "Ended batches, by final phase.", "phase"
        )
        self._batch_durations = self._histogram(
            "gateway_batch_duration_seconds",
            "Time from a batch's creation to its terminal state, by phase.",
            _BATCHES,
            "phase",
        )
        self.files_ended = self._counter(
            "gateway_files_ended_total",
            "Files deleted at their expiry (expired), and deleted files whose bytes and object"
            " are removed (removed).",
            "step",
        )
        self.uploads_ended = self._counter(
            "gateway_uploads_ended_total",
            "Settled uploads: completed, cancelled or expired.",
            "outcome",
        )
        self.orphans = self._counter(
            "gateway_orphans_removed_total",
            "Removed objects in the store that no Kubernetes object named, by folder.",
            "folder",
        )
        self.orphan_bytes = self._counter(
            "gateway_orphan_bytes_removed_total",
            "Bytes of removed objects in the store that no Kubernetes object named.",
        )
        self.quota_repairs = self._counter(
            "gateway_storage_repairs_total",
            "Repaired differences between the storage ledger and the Kubernetes API: stray (an"
            " entry without an object, released); missing (an object without an entry) and size"
            " (an entry with a wrong size), after which the account's ledger is rebuilt.",
            "kind",
        )
        self.uploads_open = self._gauge(
            "gateway_uploads_open", "Unsettled uploads in this replica's shards."
        )
        self.oldest_deletion = self._gauge(
            "gateway_file_deletion_oldest_age_seconds",
            "Time since the deletion of the oldest file whose bytes are not deleted yet; 0 for"
            " none.",
        )
        self._stored = self._gauge(
            "gateway_stored_bytes",
            "Bytes of all accounts as of the last audit: of files, of temporary files, and"
            " reserved for uploads.",
            "state",
        )
        self._files = self._gauge(
            "gateway_files", "Files by purpose, as of the last audit.", "purpose"
        )
        self.files_broken = self._gauge(
            "gateway_files_broken",
            "Files with missing bytes or a wrong size, as of the last audit.",
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def _histogram(
        self, name: str, text: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        return Histogram(name, text, labels, buckets=buckets, registry=self.registry)

    def show_shards(self, numbers: Iterable[int]) -> None:
        """Set the shards that this replica works."""
        self._shards.clear()
        for number in numbers:
            self._shards.labels(str(number)).set(1)

    def count_end(self, reason: Reason, phase: str, seconds: float) -> None:
        """Count a task's end, and the time since its creation."""
        self._ends.labels(reason.value).inc()
        self._durations.labels(phase).observe(max(0.0, seconds))

    def count_batch_end(self, phase: str, seconds: float) -> None:
        """Count a batch's end, and the time since its creation."""
        self._batch_ends.labels(phase).inc()
        self._batch_durations.labels(phase).observe(max(0.0, seconds))

    def count_call(self, provider: str, call: str, outcome: str, seconds: float) -> None:
        """Count a call to a provider that took so long."""
        self._calls.labels(provider, call, outcome).inc()
        self._call_durations.labels(provider, call).observe(seconds)

    def show_oldest_holds(self, running: float, unaccounted: float) -> None:
        """Set the ages, in seconds, of the oldest holds that a sweep has found."""
        self._oldest_holds.labels("running").set(running)
        self._oldest_holds.labels("unaccounted").set(unaccounted)

    def show_stored(self, stored: Mapping[str, int], files: Mapping[str, int]) -> None:
        """Set the bytes by state, and the number of files by purpose."""
        for state, size in stored.items():
            self._stored.labels(state).set(size)
        for purpose, count in files.items():
            self._files.labels(purpose).set(count)

    def note_sweep(self, name: str, moment: datetime) -> None:
        """Note that a sweep has succeeded, or that the process has started."""
        self._sweeps.labels(name).set(moment.timestamp())
