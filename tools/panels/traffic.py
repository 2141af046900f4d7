"""What clients send, and what is let in of it."""

from tools.panels.parts import Panel, Query, Row, quantiles, rate

_NOT_OPERATIONS = ',surface!="operations"'

REQUESTS: Row = (
    "Requests",
    (
        Panel(
            "Requests by surface and status",
            "reqps",
            "Probes and scrapes left out.",
            (
                Query(
                    rate("gateway_http_requests_total", "surface, status", _NOT_OPERATIONS),
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
                    rate("gateway_http_requests_total", "account_class", _NOT_OPERATIONS),
                    "{{account_class}}",
                ),
            ),
            stacked=True,
        ),
        Panel(
            "Time to answer",
            "s",
            "From a request's head to the end of its answer.",
            quantiles(
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
                    rate("gateway_content_bytes_total", "surface, direction"),
                    "{{surface}} {{direction}}",
                ),
            ),
        ),
        Panel(
            "Connections and downloads",
            "short",
            "Open, by pod; how many per second a bound on their number ended or refused.",
            (
                Query("sum by (pod) (gateway_connections{JOBS})", "connections {{pod}}"),
                Query("sum by (pod) (gateway_downloads{JOBS})", "downloads {{pod}}"),
                Query(
                    rate("gateway_connections_over_bound_total", "outcome"),
                    "connections {{outcome}}/s",
                ),
                Query(
                    "sum(rate(gateway_downloads_refused_total{JOBS}[RATE]))", "downloads refused/s"
                ),
            ),
        ),
    ),
)

MCP: Row = (
    "MCP",
    (
        Panel(
            "Calls of tools by outcome",
            "reqps",
            "ok, or the code of the error that the caller's model reads.",
            (Query(rate("gateway_mcp_tool_calls_total", "tool, outcome"), "{{tool}} {{outcome}}"),),
            stacked=True,
        ),
        Panel(
            "Calls that wait for their task",
            "short",
            "Now, by pod; and how many per second ended, by what ended the wait.",
            (
                Query("sum by (pod) (gateway_mcp_waiting{JOBS})", "waiting {{pod}}"),
                Query(rate("gateway_mcp_waits_total", "outcome"), "{{outcome}}/s"),
            ),
        ),
    ),
)

ADMISSION: Row = (
    "Admission and money",
    (
        Panel(
            "Paid calls by surface and outcome",
            "reqps",
            "created, replayed, accepted, or the code of the refusal.",
            (
                Query(
                    rate("gateway_admissions_total", "surface, outcome"),
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
                *quantiles("gateway_counters_round_trip_seconds", "pod", "", "{{pod}}"),
                Query(rate("gateway_counters_unanswered_total", "pod"), "lost/s {{pod}}"),
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
)
