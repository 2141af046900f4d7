"""Which tests `make test` runs, which `make test-full` runs after those, and in which order."""

import pytest

FULL_FOLDERS = ("chart", "conformance", "crash", "documents", "e2e", "faults")
"""Folders whose tests are all of the full tier."""
FULL = "full"
LONGEST_FIRST = ("crash", "faults", "integration", "chart", "callbacks", "conformance")
"""Folders whose files take longest: begun last, one would run on when the others have ended."""
SHORTEST_LAST = ("ports", "crd", "cli", "documents", "unit")
"""Folders whose files are short: the last to end then is a short one."""


def mark_full(items: list[pytest.Item]) -> None:
    """Mark the tests of those folders with `full`, as single tests elsewhere are."""
    for item in items:
        if name_top(item.nodeid) in FULL_FOLDERS:
            item.add_marker(FULL)


def rank(nodeid: str) -> tuple[int, str]:
    """Return what tests are sorted by: the place of their folder, then their file."""
    order = (*LONGEST_FIRST, *SHORTEST_LAST)
    folder = name_top(nodeid)
    return order.index(folder) if folder in order else len(order), nodeid.partition("::")[0]


def name_top(nodeid: str) -> str:
    """Return the folder below `tests` that a test is in."""
    return nodeid.removeprefix("tests/").partition("/")[0]
