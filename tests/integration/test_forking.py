"""A server that is forked ends, logs and is waited for as one that was executed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.servers.forking import ROOT, ForkedServer, start_server
from tests.servers.server import execute, find_free_port

MODULE = (sys.executable, "-m", "gateway_simulator")


def test_forked_server_keeps_its_log_and_ends_by_its_signal(tmp_path):
    log = tmp_path / "server.log"
    # the process says which setting is missing, and exits with 2
    refused = start_server(MODULE, {"GATEWAY_SIMULATOR_PORT": "none"}, log)
    assert isinstance(refused, ForkedServer)
    assert refused.wait(60) == 2
    assert "GATEWAY_SIMULATOR_TOKEN" in log.read_text()
    env = {"GATEWAY_SIMULATOR_TOKEN": "t", "GATEWAY_SIMULATOR_STATE_DIR": str(tmp_path / "state")}
    env |= {"GATEWAY_SIMULATOR_PORT": str(find_free_port())}
    server = start_server(MODULE, env, log)
    with pytest.raises(subprocess.TimeoutExpired):
        server.wait(0.01)
    server.send_signal(signal.SIGKILL)
    assert server.wait(30) == -signal.SIGKILL
    assert server.poll() == -signal.SIGKILL


def start_both(folder: Path, port: int) -> None:
    """Start a server that is forked and one that is executed, print their pids, and be killed."""
    env = {"GATEWAY_SIMULATOR_TOKEN": "t", "GATEWAY_SIMULATOR_STATE_DIR": str(folder)}
    env |= {"GATEWAY_SIMULATOR_PORT": str(port)}
    forked, executed = start_server(MODULE, env, folder / "log"), execute(("sleep", "600"))
    print(forked.pid, executed.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.full
def test_servers_end_with_a_killed_test_process(tmp_path):
    code = f"from {__name__} import *; start_both(Path({str(tmp_path)!r}), {find_free_port()})"
    killed = subprocess.run(
        (sys.executable, "-c", code),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        # a fork server that outlives it would hold the pipe
        timeout=60,
    )
    assert killed.returncode == -signal.SIGKILL
    forked, executed = map(int, killed.stdout.split())
    deadline = time.monotonic() + 60
    while running := [pid for pid in (forked, executed) if is_running(pid)]:
        assert time.monotonic() < deadline, running
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """Return whether there is a process that is no zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
