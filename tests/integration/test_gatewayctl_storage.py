"""`gatewayctl files|uploads|batches` on the gateway as it runs."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.servers.world import World

Run = Callable[..., Any]


@pytest.fixture
def environment(world: World, tmp_path: Path) -> dict[str, str]:
    """What a user has: an address, a key, a home."""
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": ":".join(sys.path),
        "GATEWAY_BASE_URL": world.env["GATEWAY_BASE_URL"],
        "GATEWAY_API_KEY": world.env["GATEWAY_API_KEY"],
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }


@pytest.fixture
def run(environment: dict[str, str]) -> Run:
    """Runs a command in a process of its own; its document."""

    def run(*arguments: object, code: int = 0) -> Any:
        command = [sys.executable, "-m", "gateway_cli", *map(str, arguments), "--output=json"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout) if code == 0 else done.stderr

    return run


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_file_goes_up_and_comes_back_and_goes(run: Run, tmp_path: Path) -> None:
    source, back = tmp_path / 'ä "b".bin', tmp_path / "back"
    source.write_bytes(os.urandom(300_000))
    file = run("files", "upload", source)
    assert (file["filename"], file["bytes"], file["purpose"]) == (source.name, 300_000, "user_data")
    assert run("files", "get", file["id"]) == file
    assert file in run("files", "list")["items"]
    run("files", "download", file["id"], "--to", back)
    assert digest(back) == digest(source)
    run("files", "delete", file["id"], "--yes")
    assert "404" in run("files", "get", file["id"], code=4)
