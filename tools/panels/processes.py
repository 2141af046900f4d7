"""How the processes themselves are."""

from tools.panels.parts import Panel, Query, Row, quantiles

PROCESSES: Row = (
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
                Query("max by (pod) (gateway_feed_heartbeat_age_seconds{JOBS})", "feed {{pod}}"),
            ),
        ),
        Panel(
            "Event loop's lag, p99",
            "s",
            "",
            (quantiles("gateway_event_loop_lag_seconds", "pod", "", "{{pod}}")[1],),
        ),
        Panel(
            "Clock skew",
            "s",
            "How far the machine's clock is ahead of the Kubernetes API server's.",
            (Query("max by (pod) (gateway_clock_skew_seconds{JOBS})", "{{pod}}"),),
        ),
        Panel(
            "CPU",
            "short",
            "Cores; a process uses one at most.",
            (Query("rate(process_cpu_seconds_total{JOBS}[RATE])", "{{pod}}"),),
        ),
        Panel(
            "Memory",
            "bytes",
            "Resident.",
            (Query("sum by (pod) (process_resident_memory_bytes{JOBS})", "{{pod}}"),),
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
            "Shards owned, processes by version",
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
)
