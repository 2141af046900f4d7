"""Fixtures of the API's unit tests."""

import os

import pytest

from tests.unit.apiserver.gateway import Gateway


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings but those of the test."""
    for name in list(os.environ):
        if name.startswith("GATEWAY_"):
            monkeypatch.delenv(name)


@pytest.fixture
async def gateway() -> Gateway:
    return Gateway()
