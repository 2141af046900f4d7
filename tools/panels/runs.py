"""Tasks from their creation to their end, and whom they call on the way."""

from tools.panels.parts import Panel, Query, Row, quantiles, rate

TASKS: Row = (
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
            (Query(rate("gateway_tasks_ended_total", "reason"), "{{reason}}"),),
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
                *quantiles("gateway_task_submit_delay_seconds", "", "", "job"),
                *quantiles("gateway_task_duration_seconds", "phase", "", "{{phase}}"),
            ),
        ),
        Panel(
            "Ends: lag at most, and its parts",
            "s",
            "at most: from the last poll that saw the job run until its end is in the record."
            " record: from the poll that saw the end. poll: how late polls are sent.",
            (
                *quantiles("gateway_task_detection_lag_seconds", legend="at most"),
                *quantiles("gateway_task_record_delay_seconds", legend="record"),
                *quantiles("gateway_poll_delay_seconds", legend="poll"),
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
                Query(rate("gateway_work_failures_total", "pod"), "failures/s {{pod}}"),
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
)

PROVIDERS: Row = (
    "Providers",
    (
        Panel(
            "Calls that failed",
            "percentunit",
            "Of all calls to the provider.",
            (
                Query(
                    rate("gateway_upstream_calls_total", "provider, outcome", ',outcome!="ok"')
                    + " / on (provider) group_left "
                    + rate("gateway_upstream_calls_total", "provider"),
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
                    rate("gateway_upstream_calls_total", "provider, call"),
                    "{{provider}} {{call}}",
                ),
            ),
            stacked=True,
        ),
        Panel(
            "Time of a call",
            "s",
            "The wait for a free place among the provider's calls included.",
            quantiles(
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
            (Query(rate("gateway_notices_total", "outcome"), "{{outcome}}"),),
            stacked=True,
        ),
    ),
)

CALLBACKS: Row = (
    "Callbacks",
    (
        Panel(
            "Attempts by what they left",
            "ops",
            "",
            (Query(rate("gateway_callback_attempts_total", "state"), "{{state}}"),),
            stacked=True,
        ),
        Panel(
            "From the end to the delivery, and one attempt",
            "s",
            "",
            (
                *quantiles("gateway_callback_delay_seconds", "", "", "delivery"),
                *quantiles("gateway_callback_attempt_duration_seconds", "", "", "attempt"),
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
)
