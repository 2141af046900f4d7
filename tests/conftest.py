"""Fixtures for whatever needs a real control plane without the gateway's processes."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.servers.control_plane import ControlPlane

# what an example may take is no property of the code on a machine that others share
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """One for the session, and one for each worker of pytest-xdist."""
    with ControlPlane() as running:
        yield running
