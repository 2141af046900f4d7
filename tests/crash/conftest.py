"""One gateway for the crash tests of a module; each test leaves it whole."""

import pytest

from tests.servers.world import World


@pytest.fixture(scope="module")
def world():
    """All processes, none restarted of itself."""
    with World() as running:
        yield running
