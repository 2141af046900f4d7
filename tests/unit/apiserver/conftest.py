"""Fixtures of the API's unit tests."""

import pytest

from gateway_apiserver.surfaces.console import overview, tasks
from gateway_core.kube.row_index import RowIndex

PATIENCE_SECONDS = 60.0


@pytest.fixture
def hasty_pages() -> None:
    """For tests of what a page shows before its first list has come."""


@pytest.fixture(autouse=True)
def patient_pages(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pages wait for their first list, however long the machine stalls."""
    if "hasty_pages" not in request.fixturenames:
        monkeypatch.setattr(RowIndex.wait_listed, "__defaults__", (PATIENCE_SECONDS,))
        for module in (overview, tasks):
            monkeypatch.setattr(module, "PATIENCE_SECONDS", PATIENCE_SECONDS)
