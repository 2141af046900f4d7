"""Fixtures for whatever needs a real control plane without the gateway's processes."""

from collections.abc import Iterator

import pytest

from tests.servers.control_plane import ControlPlane


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """One for the session, and one for each worker of pytest-xdist."""
    with ControlPlane() as running:
        yield running
