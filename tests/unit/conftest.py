"""Fixtures of the unit tests of more than one noun: the API on fakes."""

import pytest

from tests.unit.apiserver.gateway import Gateway, clear_environment


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings but those of the test."""
    clear_environment(monkeypatch)


@pytest.fixture
async def gateway(request: pytest.FixtureRequest) -> Gateway:
    """The API on fakes; settings by indirect parameter."""
    return Gateway(**getattr(request, "param", {}))
