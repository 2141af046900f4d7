"""Fixtures of the API's unit tests."""

import pytest

from tests.unit.apiserver.gateway import Gateway


@pytest.fixture
async def gateway() -> Gateway:
    return Gateway()
