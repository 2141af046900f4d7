"""Fixtures of the CLI's unit tests."""

from pathlib import Path

import pytest

from gateway_cli.local.config import LocalConfig
from tests.servers.control_plane import ROOT, free_ports


@pytest.fixture
def config(tmp_path: Path) -> LocalConfig:
    """A run of this checkout in a folder of its own."""
    return LocalConfig(root=ROOT, directory=tmp_path / "local", ports=free_ports())
