"""`gatewayctl files|uploads|batches` on the gateway as it runs."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.servers.proxy import Proxy
from tests.servers.world import World

pytestmark = pytest.mark.full

Run = Callable[..., Any]


@pytest.fixture
def link(world: World) -> Iterator[Proxy]:
    """The way to the API of those who have its address for theirs."""
    with Proxy(world.config.ports.api) as proxy:
        yield proxy


@pytest.fixture
def environment(world: World, tmp_path: Path, link: Proxy) -> dict[str, str]:
    """What a user has: an address, a key, a home."""
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": ":".join(sys.path),
        "GATEWAY_BASE_URL": f"http://127.0.0.1:{link.port}",
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


def find_parts(state: Path) -> set[str]:
    """The parts that are up, by what the command has written down."""
    found = set[str]()
    for path in state.rglob("*.json"):
        with suppress(FileNotFoundError):  # it has been put in place of another meanwhile
            found.update(re.findall(r"part_[a-z2-7]{26}", path.read_text()))
    return found


def test_file_is_uploaded_downloaded_and_deleted(run: Run, tmp_path: Path) -> None:
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


def test_killed_upload_is_continued(
    run: Run, environment: dict[str, str], link: Proxy, world: World, tmp_path: Path
) -> None:
    source, back = tmp_path / "large.bin", tmp_path / "back"
    source.write_bytes(os.urandom(45_000_000))
    # of six parts, four at once: no less than one is up then, and never all
    link.take_at_most(40_000_000)
    command = [sys.executable, "-m", "gateway_cli", "files", "upload", str(source)]
    killed = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    # what it knows of the Upload is written after each part
    while not (there := find_parts(Path(environment["XDG_STATE_HOME"]))):
        assert killed.poll() is None, "it has ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.002)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    # what it has sent and the API has not had is lost
    link.cut()
    link.take_at_most(None)
    (left,) = run("uploads", "list")["items"]
    file = run("files", "upload", source)
    assert run("uploads", "list")["items"] == []
    request = world.read("gatewayfile", file["id"])["spec"]["request"]
    assert request["uploadName"] == left["id"].replace("_", "-"), "it is the same Upload"
    assert there <= {segment["key"].rpartition("/")[2] for segment in request["segments"]}
    run("files", "download", file["id"], "--to", back)
    assert digest(back) == digest(source)
    # nobody else has use for so many bytes, here or in the store
    run("files", "delete", file["id"], "--yes")
    source.unlink()
    back.unlink()
