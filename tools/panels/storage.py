"""Batches, and the files that they and clients make."""

from tools.panels.parts import Panel, Query, Row, quantiles, rate

BATCHES: Row = (
    "Batches",
    (
        Panel(
            "Requests of batches",
            "reqps",
            "Answered: completed with a 2xx, failed otherwise.",
            (Query(rate("gateway_batch_lines_total", "outcome"), "{{outcome}}"),),
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
            (Query(rate("gateway_batches_ended_total", "phase"), "{{phase}}"),),
        ),
        Panel(
            "From creation to end",
            "s",
            "The window is a day.",
            quantiles("gateway_batch_duration_seconds"),
        ),
        Panel(
            "Oldest result that is not stored",
            "s",
            "Two seconds at most while the object store takes writes.",
            (Query("max by (pod) (gateway_batch_checkpoint_age_seconds{JOBS})", "{{pod}}"),),
        ),
    ),
)

FILES: Row = (
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
                Query(rate("gateway_files_ended_total", "step"), "file {{step}}"),
                Query(rate("gateway_uploads_ended_total", "outcome"), "upload {{outcome}}"),
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
)
