"""What the operator counts as it happens, for Prometheus; served on the health port.

What is to be seen at any moment (how many tasks, how long a queue) is `census`'s.
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
        self.record_size = Gauge(
            "gateway_record_size_bytes",
            "Bytes allocated for the Kubernetes API's database, where its quota is set.",
            registry=self.registry,
        )
        self.record_quota = Gauge(
            "gateway_record_quota_bytes",
            "The quota of that database, as it was set; 0 where the size is not looked at.",
            registry=self.registry,
        )
        self.record_refusals = self._counter(
            "gateway_record_refusals_total",
            "Writes of this process that the Kubernetes API has refused for lack of space.",
        )
        self._ends = self._counter(
            "gateway_tasks_ended_total", "Tasks that ended, by the reason of their end.", "reason"
        )
        self._durations = self._histogram(
            "gateway_task_duration_seconds",
            "From a task's creation to its terminal state, by phase.",
            _TASKS,
            "phase",
        )
        self.submit_delay = self._histogram(
            "gateway_task_submit_delay_seconds",
            "From a task's creation until its provider's job is in the record.",
            _TASKS,
        )
        self.detection_lag = self._histogram(
            "gateway_task_detection_lag_seconds",
            "At most so long after a task's job ended its end was in the record: from the last poll"
            " that was told that it runs, or its submission, until the end is recorded, outputs"
            " copied. The wait between two polls is part of it, so the true lag is less.",
            _LAGS,
        )
        self.record_delay = self._histogram(
            "gateway_task_record_delay_seconds",
            "From the first answer that told the end of a task's job until that is in the record,"
            " outputs copied.",
            _LAGS,
        )
        self.poll_delay = self._histogram(
            "gateway_poll_delay_seconds",
            "How long after they were due jobs were asked after; a notice makes it due at once.",
            _LAGS,
        )
        self._calls = self._counter(
            "gateway_upstream_calls_total",
            "Calls to providers: ok, or the way they failed (rejected, busy, denied, unclear,"
            " gone, cut_short).",
            "provider",
            "call",
            "outcome",
        )
        self._call_durations = self._histogram(
            "gateway_upstream_call_duration_seconds",
            "Calls to providers, the wait for a free place among them included.",
            _CALLS,
            "provider",
            "call",
        )
        self._shards = Gauge(
            "gateway_shard_owned",
            "1 for each shard that is worked here.",
            ["shard"],
            registry=self.registry,
        )
        self.repairs = self._counter(
            "gateway_watch_repairs_total", "Objects that a comparison with the record had to mend."
        )
        self.stray_holds = self._counter(
            "gateway_stray_holds_total", "Holds ended by the sweeper instead of their task's end."
        )
        self._oldest_holds = Gauge(
            "gateway_reservation_oldest_age_seconds",
            "The oldest hold of this replica's shards as of the last sweep, 0 where none is older"
            " than 2 min; `running` is of tasks that are under way, `unaccounted` of no such task.",
            ["state"],
            registry=self.registry,
        )
        self._sweeps = Gauge(
            "gateway_sweep_last_success_timestamp_seconds",
            "When each sweep (repairs, retention, the journal, balances) last came to its end"
            " without an error, or when its process has started, in Unix time.",
            ["sweep"],
            registry=self.registry,
        )
        self._notices = self._counter(
            "gateway_notices_total",
            "Notices of providers by what they came to: taken, held_up, or useless.",
            "outcome",
        )
        self.folded = self._counter(
            "gateway_tasks_folded_total", "Ended tasks whose charge was folded into usage."
        )
        self.folded_calls = self._counter(
            "gateway_calls_folded_total", "Calls of the usage journal that were folded into usage."
        )
        self.journal_objects = Gauge(
            "gateway_journal_objects",
            "Objects of the usage journal that were not folded yet, as of the last look.",
            registry=self.registry,
        )
        self.journals_damaged = Gauge(
            "gateway_journals_damaged",
            "Processes whose usage journal has an object that cannot be read, as of the last look.",
            registry=self.registry,
        )
        self.removed = self._counter(
            "gateway_tasks_removed_total", "Finished tasks that retention removed."
        )
        self.finished = Gauge(
            "gateway_tasks_finished",
            "Finished tasks that are kept, as of the last look.",
            registry=self.registry,
        )
        self.work_failures = self._counter(
            "gateway_work_failures_total",
            "Looks at a task, a file or an upload that failed and are repeated later.",
        )
        self._attempts = self._counter(
            "gateway_callback_attempts_total",
            "Attempts at callbacks, by the state that each left: Delivered, Pending (it failed and"
            " is repeated), Undelivered.",
            "state",
        )
        self.attempt_duration = self._histogram(
            "gateway_callback_attempt_duration_seconds",
            "Attempts at callbacks, from the first byte sent to the receiver's answer.",
            _CALLS,
        )
        self.delivery = self._histogram(
            "gateway_callback_delay_seconds",
            "From the terminal state to the delivery of its callback.",
            _DELIVERIES,
        )

        self.batch_lines = self._counter(
            "gateway_batch_lines_total",
            "Requests of batches that were answered: completed with a 2xx, failed otherwise.",
            "outcome",
        )
        self._batch_ends = self._counter(
            "gateway_batches_ended_total",
            "Batches that ended, by the phase they ended in.",
            "phase",
        )
        self._batch_durations = self._histogram(
            "gateway_batch_duration_seconds",
            "From a batch's creation to its terminal state, by phase.",
            _BATCHES,
            "phase",
        )
        self.files_ended = self._counter(
            "gateway_files_ended_total",
            "Files that were deleted as their life was over (expired), and files that have gone"
            " with their bytes, whoever deleted them (removed).",
            "step",
        )
        self.uploads_ended = self._counter(
            "gateway_uploads_ended_total",
            "Uploads that were settled: completed, cancelled or expired.",
            "outcome",
        )
        self.orphans = self._counter(
            "gateway_orphans_removed_total",
            "Objects in the store that nothing named and that were removed, by folder.",
            "folder",
        )
        self.orphan_bytes = self._counter("gateway_orphan_bytes_removed_total", "Their bytes.")
        self.quota_repairs = self._counter(
            "gateway_storage_repairs_total",
            "Differences between the storage ledger and the record that were mended: stray (a"
            " member without an object was released), missing (an object without a member) and"
            " size (a member of other bytes), which have the account's pool made again.",
            "kind",
        )
        self.uploads_open = Gauge(
            "gateway_uploads_open",
            "Uploads of this replica's shards that are not settled.",
            registry=self.registry,
        )
        self.oldest_deletion = Gauge(
            "gateway_file_deletion_oldest_age_seconds",
            "Since the oldest file that waits for its bytes to be removed was deleted; 0 for none.",
            registry=self.registry,
        )
        self._stored = Gauge(
            "gateway_stored_bytes",
            "Bytes of all accounts as of the last proof: of files, of temporary files, and reserved"
            " for uploads.",
            ["state"],
            registry=self.registry,
        )
        self._files = Gauge(
            "gateway_files",
            "Files by purpose as of the last proof.",
            ["purpose"],
            registry=self.registry,
        )
        self.files_broken = Gauge(
            "gateway_files_broken",
            "Files of which bytes are missing or of another size, as of the last reconciliation.",
            registry=self.registry,
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _histogram(
        self, name: str, text: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        return Histogram(name, text, labels, buckets=buckets, registry=self.registry)

    def show_shards(self, numbers: Iterable[int]) -> None:
        """Tells which shards are worked here from now on."""
        self._shards.clear()
        for number in numbers:
            self._shards.labels(str(number)).set(1)

    def count_end(self, reason: Reason, phase: str, seconds: float) -> None:
        """Counts a task's end, and the time since its creation."""
        self._ends.labels(reason.value).inc()
        self._durations.labels(phase).observe(max(0.0, seconds))

    def count_batch_end(self, phase: str, seconds: float) -> None:
        """Counts a batch's end, and the time since its creation."""
        self._batch_ends.labels(phase).inc()
        self._batch_durations.labels(phase).observe(max(0.0, seconds))

    def count_notice(self, outcome: str) -> None:
        """Counts a notice: `taken`, `held_up` or `useless`."""
        self._notices.labels(outcome).inc()

    def count_attempt(self, state: str) -> None:
        """Counts an attempt at a callback."""
        self._attempts.labels(state).inc()

    def count_call(self, provider: str, call: str, outcome: str, seconds: float) -> None:
        """Counts a call to a provider that took so long."""
        self._calls.labels(provider, call, outcome).inc()
        self._call_durations.labels(provider, call).observe(seconds)

    def show_oldest_holds(self, running: float, unaccounted: float) -> None:
        """Tells the ages, in seconds, of the oldest holds that a sweep has found."""
        self._oldest_holds.labels("running").set(running)
        self._oldest_holds.labels("unaccounted").set(unaccounted)

    def show_stored(self, stored: Mapping[str, int], files: Mapping[str, int]) -> None:
        """Tells bytes by state, and how many files there are by purpose."""
        for state, size in stored.items():
            self._stored.labels(state).set(size)
        for purpose, count in files.items():
            self._files.labels(purpose).set(count)

    def note_sweep(self, name: str, moment: datetime) -> None:
        """Takes in that a sweep has come to its end, or that the process has started."""
        self._sweeps.labels(name).set(moment.timestamp())
