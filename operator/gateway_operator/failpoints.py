"""The operator's failpoints: steps at which tests kill the process."""

from gateway_core import failpoints

NAMES = (
    "before-intent",
    "after-intent",
    "after-submit",
    "after-running",
    "before-outputs",
    "after-outputs",
    "after-terminal",
    "before-callback",
    "after-callback",
    "after-callback-record",
    "after-archive",
    "after-settle",
    "after-fold",
    "after-finalizer",
    "before-removal",
    "after-removal",
    "after-journal-fold",
    "before-journal-removal",
    "after-journal-removal",
    "after-key-secret",
    "before-batch-start",
    "after-batch-start",
    "before-batch-checkpoint",
    "after-batch-checkpoint",
    "before-batch-run-end",
    "after-batch-run-end",
    "after-batch-bytes",
    "after-batch-file",
    "before-batch-end",
    "after-batch-end",
    "after-batch-settle",
    "after-batch-fold",
    "after-batch-removal",
    "after-batch-finalizer",
    "after-file-release",
    "after-file-bytes",
    "after-file-upload",
    "after-file-finalizer",
    "after-upload-outcome",
    "after-upload-file",
    "after-upload-move",
    "after-upload-parts",
    "after-upload-finalizer",
    "after-upload-settled",
    "before-orphan-removal",
)


class Failpoints(failpoints.Failpoints):
    """The operator's failpoints."""

    names = NAMES
