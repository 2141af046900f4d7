"""Memory is flat while streaming: seen from outside, in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.s3 import S3Server

SIZE = 256
BUFFERS = 8
"""MiB that one stream may hold: a part of an upload. Another as much for what libraries hold."""


@pytest.mark.full
@pytest.mark.parametrize("store", ["directory", "bucket"])
def test_process_does_not_grow_with_what_it_streams(
    request: pytest.FixtureRequest, store: str, tmp_path: Path
) -> None:
    if store == "directory":
        settings = {"GATEWAY_STORE_DIR": str(tmp_path)}
    else:
        server: S3Server = request.getfixturevalue("s3_server")
        settings = server.settings(prefix="memory-test")
    run = subprocess.run(
        [sys.executable, "-m", "tests.ports.streaming_memory", str(SIZE)],
        env={**os.environ, **settings},
        capture_output=True,
        check=True,
        text=True,
    )
    grown = json.loads(run.stdout)
    print(grown)
    assert grown["one"] < 2 * BUFFERS + 8, f"{SIZE} MiB each way: {grown}"
    assert grown["four"] < 4 * 2 * BUFFERS + 8, f"four of {SIZE // 4} MiB at once: {grown}"
