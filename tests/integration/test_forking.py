"""A server that is forked ends, logs and is waited for as one that was executed."""

import signal
import subprocess
import sys

import pytest

from tests.servers.forking import ForkedServer, start_server
from tests.servers.server import find_free_port

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
