"""Named steps at which processes are killed: who comes by, of which class, and which file kills.

`make test-full` kills each process at one step of each class or more, `make test-long` at all.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from tests.shares import IS_WHOLE


class When(StrEnum):
    """The class of a step: what the process has done when it is killed there."""

    BEFORE = "before the write"
    AFTER_WRITE = "after the write"
    AFTER_EFFECT = "after the external effect"


BEFORE, AFTER_WRITE, AFTER_EFFECT = When
"""A write is one to the Kubernetes API; effects are of Redis, the store, providers and clients."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a process, and the file below `tests/crash` that kills there."""

    process: str
    name: str
    when: When
    file: str
    is_chosen: bool
    """True for the steps at which `make test-full` kills."""


def _list_steps(
    process: str, file: str, names: Mapping[str, When], *, chosen: str
) -> tuple[Step, ...]:
    words = chosen.split()
    assert set(words) <= set(names), words
    return tuple(Step(process, name, when, file, name in words) for name, when in names.items())


TASKS = "tasks/test_failpoints.py"
RETENTION = "tasks/test_retention.py"
CALLBACKS = "callbacks/test_callbacks.py"
JOURNAL = "billing/test_journal.py"
KEYS = "accounts/test_keys.py"
REMAINS = "accounts/test_remains.py"
HISTORIES = "accounts/test_histories.py"
PASSWORD_LINKS = "accounts/test_password_links.py"
BATCHES = "batches/test_batches.py"
STORED = "files/test_stored.py"
UPLOADS = "files/test_uploads.py"
MCP = "mcp/test_kills.py"

CREATION = {
    "before-reserve": BEFORE,
    "after-reserve": AFTER_EFFECT,
    "before-create": BEFORE,
    "after-create": AFTER_WRITE,
}
"""Steps of a create, at the API and at the MCP process."""

STEPS = (
    *_list_steps(
        "operator",
        TASKS,
        {
            "before-intent": BEFORE,
            "after-intent": AFTER_WRITE,
            "after-submit": AFTER_EFFECT,
            "after-running": AFTER_WRITE,
            "before-outputs": BEFORE,
            "after-outputs": AFTER_EFFECT,
            "after-terminal": AFTER_WRITE,
            "after-archive": AFTER_EFFECT,
            "after-settle": AFTER_EFFECT,
            "after-fold": AFTER_WRITE,
            "after-finalizer": AFTER_WRITE,
        },
        chosen="before-intent after-submit after-terminal",
    ),
    *_list_steps("api", TASKS, CREATION, chosen="after-reserve before-create after-create"),
    *_list_steps(
        "operator",
        CALLBACKS,
        {
            "before-callback": BEFORE,
            "after-callback": AFTER_EFFECT,
            "after-callback-record": AFTER_WRITE,
        },
        chosen="after-callback",
    ),
    *_list_steps(
        "operator",
        RETENTION,
        {"before-removal": BEFORE, "after-removal": AFTER_WRITE},
        chosen="before-removal",
    ),
    *_list_steps(
        "operator",
        JOURNAL,
        {
            "after-journal-fold": AFTER_WRITE,
            "before-journal-removal": BEFORE,
            "after-journal-removal": AFTER_EFFECT,
        },
        chosen="after-journal-fold after-journal-removal",
    ),
    *_list_steps("operator", KEYS, {"after-key-secret": AFTER_WRITE}, chosen="after-key-secret"),
    *_list_steps(
        "operator",
        REMAINS,
        {
            "after-remains-page": AFTER_WRITE,
            "after-books-closed": AFTER_EFFECT,
            "after-remains": AFTER_EFFECT,
        },
        chosen="after-books-closed",
    ),
    *_list_steps("operator", HISTORIES, {"after-history": AFTER_EFFECT}, chosen="after-history"),
    *_list_steps(
        "operator",
        BATCHES,
        # in the order in which a batch passes them
        {
            "before-batch-start": BEFORE,
            "after-batch-start": AFTER_WRITE,
            "before-batch-checkpoint": BEFORE,
            "after-batch-checkpoint": AFTER_EFFECT,
            "before-batch-run-end": BEFORE,
            "after-batch-run-end": AFTER_WRITE,
            "after-batch-bytes": AFTER_EFFECT,
            "after-batch-file": AFTER_WRITE,
            "before-batch-end": BEFORE,
            "after-batch-end": AFTER_WRITE,
            "after-batch-settle": AFTER_EFFECT,
            "after-batch-fold": AFTER_WRITE,
            "after-batch-removal": AFTER_EFFECT,
            "after-batch-finalizer": AFTER_WRITE,
        },
        chosen="after-batch-checkpoint after-batch-file before-batch-end",
    ),
    *_list_steps(
        "operator",
        STORED,
        {
            "after-file-release": AFTER_EFFECT,
            "after-file-bytes": AFTER_EFFECT,
            "after-file-upload": AFTER_WRITE,
            "after-file-finalizer": AFTER_WRITE,
            "after-upload-file": AFTER_WRITE,
            "after-upload-move": AFTER_EFFECT,
            "after-upload-parts": AFTER_EFFECT,
            "after-upload-finalizer": AFTER_WRITE,
            "after-upload-settled": AFTER_WRITE,
            "after-upload-outcome": AFTER_WRITE,
            "before-orphan-removal": BEFORE,
        },
        chosen="after-file-bytes after-upload-file before-orphan-removal",
    ),
    *_list_steps(
        "api",
        STORED,
        {
            "after-file-bytes": AFTER_EFFECT,
            "after-file-claim": AFTER_EFFECT,
            "after-file-object": AFTER_WRITE,
        },
        chosen="after-file-claim",
    ),
    *_list_steps(
        "api",
        UPLOADS,
        {
            "before-part-put": BEFORE,
            "after-part-put": AFTER_EFFECT,
            "before-upload-outcome": BEFORE,
            "after-upload-outcome": AFTER_WRITE,
            "before-upload-file": BEFORE,
            "after-upload-file": AFTER_WRITE,
        },
        chosen="after-part-put after-upload-outcome",
    ),
    *_list_steps(
        "api",
        PASSWORD_LINKS,
        {
            "before-link": BEFORE,
            "after-link": AFTER_WRITE,
            "before-password": BEFORE,
            "after-password": AFTER_WRITE,
            "after-password-session": AFTER_EFFECT,
        },
        chosen="after-link after-password",
    ),
    *_list_steps("mcp", MCP, CREATION, chosen="after-reserve before-create after-create"),
)


def choose(process: str, file: str) -> list[str]:
    """The names of the steps at which a file kills a process in this run."""
    return [
        step.name
        for step in STEPS
        if (step.process, step.file) == (process, file) and (step.is_chosen or IS_WHOLE)
    ]
