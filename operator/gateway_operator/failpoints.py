"""The operator's failpoints: the steps at which a test has the process killed."""

from gateway_core.usecases import failpoints

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
    """Those of the operator."""

    names = NAMES
