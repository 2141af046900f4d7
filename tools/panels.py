"""What the dashboard of the chart shows: rows of panels and their queries."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL query: JOBS stands for the processes chosen, RATE for the interval of rates."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """A graph; `unit` is Grafana's word for it."""

    title: str
    unit: str
    text: str
    queries: tuple[Query, ...]
    stacked: bool = False


def _rate(metric: str, by: str, labels: str = "") -> str:
    return f"sum by ({by}) (rate({metric}{{JOBS{labels}}}[RATE]))"


def _quantiles(metric: str, by: str = "", labels: str = "", legend: str = "") -> tuple[Query, ...]:
    group = f"le, {by}" if by else "le"
    return tuple(
        Query(
            f"histogram_quantile({share},"
            f" sum by ({group}) (rate({metric}_bucket{{JOBS{labels}}}[RATE])))",
            f"p{share * 100:g} {legend}".strip(),
        )
        for share in (0.5, 0.99)
    )


_NOT_OPERATIONS = ',surface!="operations"'

ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Requests",
        (
            Panel(
                "Requests by surface and status",
                "reqps",
                "Probes and scrapes left out.",
                (
                    Query(
                        _rate("gateway_http_requests_total", "surface, status", _NOT_OPERATIONS),
                        "{{surface}} {{status}}",
                    ),
                ),
                stacked=True,
            ),
            Panel(
                "Requests by class of account",
                "reqps",
                "",
                (
                    Query(
                        _rate("gateway_http_requests_total", "account_class", _NOT_OPERATIONS),
                        "{{account_class}}",
                    ),
                ),
                stacked=True,
            ),
            Panel(
                "Time to answer",
                "s",
                "From a request's head to the end of its answer.",
                _quantiles(
                    "gateway_http_request_duration_seconds",
                    "route",
                    _NOT_OPERATIONS,
                    "{{route}}",
                ),
            ),
            Panel(
                "Contents in and out",
                "Bps",
                "Bytes of files that clients have stored or fetched.",
                (
                    Query(
                        _rate("gateway_content_bytes_total", "surface, direction"),
                        "{{surface}} {{direction}}",
                    ),
                ),
            ),
        ),
    ),
    (
        "Admission and money",
        (
            Panel(
                "Paid calls by surface and outcome",
                "reqps",
                "created, replayed, accepted, or the code of the refusal.",
                (
                    Query(
                        _rate("gateway_admissions_total", "surface, outcome"),
                        "{{surface}} {{outcome}}",
                    ),
                ),
                stacked=True,
            ),
            Panel(
                "Exchanges with Redis",
                "s",
                "Each paid call waits for one; those of one tick share it.",
                (
                    *_quantiles("gateway_counters_round_trip_seconds", "pod", "", "{{pod}}"),
                    Query(_rate("gateway_counters_unanswered_total", "pod"), "lost/s {{pod}}"),
                ),
            ),
            Panel(
                "Oldest reservation",
                "s",
                "unaccounted: of no task that is under way; the sweeper ends it.",
                (
                    Query(
                        "max by (state) (gateway_reservation_oldest_age_seconds{JOBS})",
                        "{{state}}",
                    ),
                    Query("sum(increase(gateway_stray_holds_total{JOBS}[1h]))", "stray in 1 h"),
                ),
            ),
        ),
    ),
    (
        "Tasks",
        (
            Panel(
                "Tasks by phase",
                "short",
                "Completed and Failed ones wait for their callback or for being closed.",
                (Query("sum by (phase) (gateway_tasks{JOBS})", "{{phase}}"),),
                stacked=True,
            ),
            Panel(
                "Ends by reason",
                "ops",
                "",
                (Query(_rate("gateway_tasks_ended_total", "reason"), "{{reason}}"),),
                stacked=True,
            ),
            Panel(
                "Oldest task by phase, and overdue ones",
                "s",
                "",
                (
                    Query("max by (phase) (gateway_task_oldest_age_seconds{JOBS})", "{{phase}}"),
                    Query("sum(gateway_tasks_overdue{JOBS})", "overdue (tasks)"),
                ),
            ),
            Panel(
                "From creation to the job, and to the end",
                "s",
                "",
                (
                    *_quantiles("gateway_task_submit_delay_seconds", "", "", "job"),
                    *_quantiles("gateway_task_duration_seconds", "phase", "", "{{phase}}"),
                ),
            ),
            Panel(
                "Ends: lag at most, and its parts",
                "s",
                "at most: from the last poll that saw the job run until its end is in the record."
                " record: from the poll that saw the end. poll: how late polls are sent.",
                (
                    *_quantiles("gateway_task_detection_lag_seconds", legend="at most"),
                    *_quantiles("gateway_task_record_delay_seconds", legend="record"),
                    *_quantiles("gateway_poll_delay_seconds", legend="poll"),
                ),
            ),
            Panel(
                "Work queue",
                "short",
                "",
                (
                    Query("sum by (state) (gateway_work_queue_tasks{JOBS})", "{{state}}"),
                    Query("sum(gateway_journal_objects{JOBS})", "journal objects not folded"),
                    Query("sum(gateway_copies_waiting{JOBS})", "waiting to be copied"),
                    Query("sum(gateway_copies_running{JOBS})", "being copied"),
                    Query(_rate("gateway_work_failures_total", "pod"), "failures/s {{pod}}"),
                ),
            ),
            Panel(
                "Usage: what waits to be folded",
                "short",
                "Ended tasks, and objects of the journal of calls that leave none.",
                (
                    Query("sum(gateway_usage_fold_waiting{JOBS})", "tasks"),
                    Query("max(gateway_journal_objects{JOBS})", "objects of the journal"),
                    Query("max(gateway_journals_damaged{JOBS})", "journals damaged"),
                    Query("sum(gateway_journal_unstored_records{JOBS})", "calls not stored"),
                ),
            ),
            Panel(
                "Usage: folded",
                "ops",
                "",
                (
                    Query("sum(rate(gateway_tasks_folded_total{JOBS}[RATE]))", "tasks"),
                    Query("sum(rate(gateway_calls_folded_total{JOBS}[RATE]))", "calls"),
                ),
            ),
            Panel(
                "Finished tasks removed",
                "ops",
                "By retention.",
                (Query("sum(rate(gateway_tasks_removed_total{JOBS}[RATE]))", "tasks"),),
            ),
        ),
    ),
    (
        "Providers",
        (
            Panel(
                "Calls that failed",
                "percentunit",
                "Of all calls to the provider.",
                (
                    Query(
                        _rate("gateway_upstream_calls_total", "provider, outcome", ',outcome!="ok"')
                        + " / on (provider) group_left "
                        + _rate("gateway_upstream_calls_total", "provider"),
                        "{{provider}} {{outcome}}",
                    ),
                ),
            ),
            Panel(
                "Calls",
                "reqps",
                "",
                (
                    Query(
                        _rate("gateway_upstream_calls_total", "provider, call"),
                        "{{provider}} {{call}}",
                    ),
                ),
                stacked=True,
            ),
            Panel(
                "Time of a call",
                "s",
                "The wait for a free place among the provider's calls included.",
                _quantiles(
                    "gateway_upstream_call_duration_seconds",
                    "provider, call",
                    "",
                    "{{provider}} {{call}}",
                ),
            ),
            Panel(
                "Notices of providers",
                "ops",
                "",
                (Query(_rate("gateway_notices_total", "outcome"), "{{outcome}}"),),
                stacked=True,
            ),
        ),
    ),
    (
        "Callbacks",
        (
            Panel(
                "Attempts by what they left",
                "ops",
                "",
                (Query(_rate("gateway_callback_attempts_total", "state"), "{{state}}"),),
                stacked=True,
            ),
            Panel(
                "From the end to the delivery, and one attempt",
                "s",
                "",
                (
                    *_quantiles("gateway_callback_delay_seconds", "", "", "delivery"),
                    *_quantiles("gateway_callback_attempt_duration_seconds", "", "", "attempt"),
                ),
            ),
            Panel(
                "Lanes",
                "short",
                "",
                (
                    Query("sum(gateway_callbacks_running{JOBS})", "under way"),
                    Query("sum(gateway_callbacks_waiting{JOBS})", "waiting"),
                ),
            ),
        ),
    ),
    (
        "Batches",
        (
            Panel(
                "Requests of batches",
                "reqps",
                "Answered: completed with a 2xx, failed otherwise.",
                (Query(_rate("gateway_batch_lines_total", "outcome"), "{{outcome}}"),),
                stacked=True,
            ),
            Panel(
                "Open batches",
                "short",
                "running: their requests are run; other: validated, finalized, closed or waiting.",
                (Query("sum by (state) (gateway_batches{JOBS})", "{{state}}"),),
            ),
            Panel(
                "Ends of batches",
                "ops",
                "",
                (Query(_rate("gateway_batches_ended_total", "phase"), "{{phase}}"),),
            ),
            Panel(
                "From creation to end",
                "s",
                "The window is a day.",
                _quantiles("gateway_batch_duration_seconds"),
            ),
            Panel(
                "Oldest result that is not stored",
                "s",
                "Two seconds at most while the object store takes writes.",
                (Query("max by (pod) (gateway_batch_checkpoint_age_seconds{JOBS})", "{{pod}}"),),
            ),
        ),
    ),
    (
        "Files and uploads",
        (
            Panel(
                "Bytes stored",
                "bytes",
                "Of all accounts: of files, of temporary files, and reserved for uploads.",
                (Query("max by (state) (gateway_stored_bytes{JOBS})", "{{state}}"),),
                stacked=True,
            ),
            Panel(
                "Files by purpose, open uploads",
                "short",
                "",
                (
                    Query("max by (purpose) (gateway_files{JOBS})", "{{purpose}}"),
                    Query("sum(gateway_uploads_open{JOBS})", "open uploads"),
                ),
            ),
            Panel(
                "Ends of files and uploads",
                "ops",
                "expired: deleted as their life was over; removed: gone with their bytes.",
                (
                    Query(_rate("gateway_files_ended_total", "step"), "file {{step}}"),
                    Query(_rate("gateway_uploads_ended_total", "outcome"), "upload {{outcome}}"),
                ),
            ),
            Panel(
                "What a comparison found",
                "short",
                "In an hour, save files that lack bytes: that is as of the last comparison.",
                (
                    Query("max(gateway_files_broken{JOBS})", "files that lack bytes"),
                    Query(
                        "sum by (folder) (increase(gateway_orphans_removed_total{JOBS}[1h]))",
                        "orphans {{folder}}",
                    ),
                    Query(
                        "sum by (kind) (increase(gateway_storage_repairs_total{JOBS}[1h]))",
                        "ledger {{kind}}",
                    ),
                ),
            ),
            Panel(
                "Bytes of orphans removed",
                "bytes",
                "In an hour.",
                (Query("sum(increase(gateway_orphan_bytes_removed_total{JOBS}[1h]))", "bytes"),),
            ),
            Panel(
                "Oldest deletion of a file",
                "s",
                "Since when the oldest file that was deleted waits for its bytes to be removed.",
                (Query("max(gateway_file_deletion_oldest_age_seconds{JOBS})", "oldest"),),
            ),
        ),
    ),
    (
        "Processes",
        (
            Panel(
                "Silence of watches",
                "s",
                "Healthy below 5 s; the heartbeat of the feed below 15 s.",
                (
                    Query(
                        "max by (pod, kind) (gateway_watch_silence_seconds{JOBS})",
                        "{{pod}} {{kind}}",
                    ),
                    Query(
                        "max by (pod) (gateway_feed_heartbeat_age_seconds{JOBS})", "feed {{pod}}"
                    ),
                ),
            ),
            Panel(
                "Event loop's lag, p99",
                "s",
                "",
                (_quantiles("gateway_event_loop_lag_seconds", "pod", "", "{{pod}}")[1],),
            ),
            Panel(
                "CPU",
                "short",
                "Cores.",
                (Query("rate(process_cpu_seconds_total{JOBS}[RATE])", "{{pod}}"),),
            ),
            Panel(
                "Memory",
                "bytes",
                "Resident.",
                (Query("process_resident_memory_bytes{JOBS}", "{{pod}}"),),
            ),
            Panel(
                "Objects known",
                "short",
                "",
                (
                    Query("max by (kind) (gateway_watch_objects{JOBS})", "{{kind}}"),
                    Query("max(gateway_tasks_finished{JOBS})", "finished tasks"),
                ),
            ),
            Panel(
                "Shards owned, versions",
                "short",
                "",
                (
                    Query("sum(gateway_shard_owned{JOBS})", "shards"),
                    Query(
                        "count by (component, version) (gateway_build_info{JOBS})",
                        "{{component}} {{version}}",
                    ),
                ),
            ),
        ),
    ),
)
