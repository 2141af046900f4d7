"""Which tests `make test` runs, and which `make test-full` runs after those."""

import pytest

FULL_FOLDERS = ("chart", "conformance", "crash", "documents", "e2e", "faults")
"""Folders whose tests are all of the full tier."""
FULL = "full"


def mark_full(items: list[pytest.Item]) -> None:
    """Mark the tests of those folders with `full`, as single tests elsewhere are."""
    for item in items:
        folder = item.nodeid.removeprefix("tests/").partition("/")[0]
        if folder in FULL_FOLDERS:
            item.add_marker(FULL)
