"""Memory is flat while streaming: seen from outside, in a process of its own."""

import json
import os
import subprocess
import sys

import pytest

from tests.servers.s3 import S3Server

SIZE = 256
BUFFERS = 8
"""MiB that one stream may hold: a part of an upload. Another as much for what libraries hold."""


@pytest.mark.full
def test_process_does_not_grow_with_what_it_streams(s3_server: S3Server) -> None:
    """A directory's memory is seen in process, in `test_objects`."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.ports.streaming_memory", str(SIZE)],
        env={**os.environ, **s3_server.settings(prefix="memory-test")},
        capture_output=True,
        check=True,
        text=True,
    )
    grown = json.loads(run.stdout)
    print(grown)
    assert grown["one"] < 2 * BUFFERS + 8, f"{SIZE} MiB each way: {grown}"
    assert grown["four"] < 4 * 2 * BUFFERS + 8, f"four of {SIZE // 4} MiB at once: {grown}"
