"""The operator's named steps, by the object whose life leads past them, in its order."""

TASK_STEPS = (
    *("before-intent", "after-intent", "after-submit", "after-running"),
    *("before-outputs", "after-outputs", "after-terminal", "after-settle"),
    *("before-callback", "after-callback", "after-callback-record"),
    *("after-fold", "after-archive", "after-finalizer"),
)
BATCH_STEPS = (
    *("before-batch-start", "after-batch-start"),
    *("before-batch-checkpoint", "after-batch-checkpoint"),
    *("before-batch-run-end", "after-batch-run-end", "after-batch-bytes", "after-batch-file"),
    *("before-batch-end", "after-batch-end", "after-batch-fold", "after-batch-settle"),
    *("after-batch-removal", "after-batch-finalizer"),
)
COMPLETION_STEPS = (
    *("after-upload-file", "after-upload-move", "after-upload-parts"),
    *("after-upload-finalizer", "after-upload-settled"),
)
EXPIRY_STEPS = ("after-upload-outcome", *COMPLETION_STEPS[2:])
FILE_STEPS = ("after-file-release", "after-file-bytes", "after-file-upload", "after-file-finalizer")
ORPHAN_STEPS = ("before-orphan-removal",)
REMOVAL_STEPS = ("before-removal", "after-removal")
JOURNAL_STEPS = ("after-journal-fold", "before-journal-removal", "after-journal-removal")
KEY_STEPS = ("after-key-secret",)
HISTORY_STEPS = ("after-history",)
ACCOUNT_STEPS = ("after-remains-page", "after-books-closed", "after-remains")
