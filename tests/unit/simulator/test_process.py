"""The real process on a real socket: what no in-process client can show."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass

import pytest

from tests.servers.control_plane import free_ports

BODY = json.dumps({"model": "q4", "prompt": "a cat", "client_reference": "ref"})
HEADERS = {"Authorization": "Bearer t"}


@dataclass
class Process:
    popen: subprocess.Popen[bytes]
    port: int

    def connect(self, timeout: float = 10) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def call(self, verb, path, body=None, **headers):
        with contextlib.closing(self.connect()) as connection:
            connection.request(verb, path, body, HEADERS | headers)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def get_json(self, path):
        return json.loads(self.call("GET", path)[1])

    def put_rules(self, *rules):
        status, body = self.call("PUT", "/control", json.dumps({"rules": rules}))
        assert status == 200, body

    def wait_for_requests(self, count):
        """Waits until so many have been under way at once."""
        deadline = time.monotonic() + 60
        while self.get_json("/control/history")["peak_requests"] < count:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def finish_job(self):
        """Submits a job and returns its id and the path of its output, once it is done."""
        job_id = json.loads(self.call("POST", "/v1/jobs", BODY)[1])["job"]["id"]
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            job = self.get_json(f"/v1/jobs/{job_id}")["job"]
            if job["state"] == "done":
                return job_id, "/files/" + job["outputs"][0]["url"].rsplit("/", 1)[1]
            time.sleep(0.01)
        raise AssertionError("the job did not end")


def free_port() -> int:
    """Outside of the range that clients get theirs from: nobody takes it over a restart."""
    return free_ports().simulator


def start(port, state_dir=None):
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": ":".join(sys.path),
        "GATEWAY_SIMULATOR_PORT": str(port),
        "GATEWAY_SIMULATOR_TOKEN": "t",
        "GATEWAY_SIMULATOR_SECONDS": "0.1",
    }
    if state_dir is not None:
        environment["GATEWAY_SIMULATOR_STATE_DIR"] = str(state_dir)
    command = [sys.executable, "-m", "gateway_simulator"]
    process = Process(subprocess.Popen(command, env=environment), port)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.popen.poll() is None, "the simulator ended"
        with contextlib.suppress(OSError):
            if process.call("GET", "/healthz")[0] == 200:
                return process
        time.sleep(0.02)
    process.popen.kill()
    raise AssertionError("the simulator did not start")


def stop(process):
    process.popen.kill()
    process.popen.wait()


@pytest.fixture(scope="module")
def shared():
    process = start(free_port())
    yield process
    stop(process)


@pytest.fixture
def simulator(shared):
    shared.call("DELETE", "/control")
    shared.call("DELETE", "/control/history")
    return shared


@pytest.mark.parametrize(("when", "jobs"), [("before", 0), ("after", 1)])
def test_drop_closes_the_connection_without_an_answer(simulator, when, jobs):
    simulator.put_rules({"behaviour": "drop", "when": when, "count": 1})
    with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
        simulator.call("POST", "/v1/jobs", BODY)
    assert simulator.get_json("/control/history")["jobs"] == jobs


def test_truncated_answer_ends_early(simulator):
    job_id, _ = simulator.finish_job()
    simulator.put_rules({"behaviour": "nonsense", "kind": "truncated", "count": 1})
    with pytest.raises(http.client.IncompleteRead) as caught:
        simulator.call("GET", f"/v1/jobs/{job_id}")
    assert 0 < len(caught.value.partial) <= caught.value.expected + 1


def test_wrong_length_leaves_bytes_behind_the_answer(simulator):
    job_id, _ = simulator.finish_job()
    simulator.put_rules({"behaviour": "nonsense", "kind": "wrong_length", "count": 1})
    request = f"GET /v1/jobs/{job_id} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t\r\n\r\n"
    with socket.create_connection(("127.0.0.1", simulator.port), timeout=10) as connection:
        connection.sendall(request.encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    declared = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    assert json.loads(body)["job"]["id"] == job_id
    assert declared == len(body) // 2


def test_truncated_output_ends_early(simulator):
    _, path = simulator.finish_job()
    simulator.put_rules({"behaviour": "bad_output", "kind": "truncated", "count": 1})
    with pytest.raises(http.client.IncompleteRead):
        simulator.call("GET", path)
    assert simulator.call("GET", path)[1][4:8] == b"ftyp"


def test_oversized_output_can_be_left_in_the_middle(simulator):
    _, path = simulator.finish_job()
    simulator.put_rules({"behaviour": "bad_output", "kind": "oversized", "bytes": 10**12})
    with contextlib.closing(simulator.connect()) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.getheader("content-length") == str(10**12)
        assert len(answer.read(1_000_000)) == 1_000_000
    assert simulator.call("GET", "/healthz")[0] == 200


@pytest.mark.parametrize(("when", "jobs"), [("before", 0), ("after", 1)])
def test_caller_may_leave_a_hanging_request(simulator, when, jobs):
    simulator.put_rules({"behaviour": "hang", "seconds": 600, "when": when, "count": 1})
    with contextlib.closing(simulator.connect()) as connection:
        connection.request("POST", "/v1/jobs", BODY, HEADERS)
        deadline = time.monotonic() + 60
        while simulator.get_json("/control")["rules"][0]["applied"] < 1:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        connection.sock.settimeout(0.1)
        with pytest.raises(TimeoutError):
            connection.getresponse()
    assert simulator.get_json("/control/history")["jobs"] == jobs


def test_simultaneous_requests_are_counted(simulator):
    simulator.put_rules({"behaviour": "hang", "seconds": 600})
    callers = [simulator.connect() for _ in range(5)]
    for caller in callers:
        caller.request("GET", "/v1/jobs/job_x", headers=HEADERS)
    simulator.wait_for_requests(5)
    for caller in callers:
        caller.close()


def test_kill_9_loses_no_acknowledged_job(tmp_path):
    process = start(free_port(), tmp_path)
    try:
        first = json.loads(process.call("POST", "/v1/jobs", BODY, **{"Idempotency-Key": "k"})[1])
    finally:
        stop(process)
    process = start(process.port, tmp_path)
    try:
        status, again = process.call("POST", "/v1/jobs", BODY, **{"Idempotency-Key": "k"})
        assert (status, json.loads(again)["job"]["id"]) == (200, first["job"]["id"])
        assert len(process.get_json("/control/jobs?client_reference=ref")["jobs"]) == 1
    finally:
        stop(process)


def test_signal_ends_the_process_though_a_request_hangs():
    process = start(free_port())
    try:
        process.put_rules({"behaviour": "hang", "seconds": 600})
        with contextlib.closing(process.connect()) as caller:
            caller.request("GET", "/v1/jobs/job_x", headers=HEADERS)
            process.wait_for_requests(1)
            process.popen.terminate()
            assert process.popen.wait(timeout=60) in (0, -signal.SIGTERM)
    finally:
        stop(process)


def test_busy_port_ends_the_process(simulator):
    environment = {
        "PYTHONPATH": ":".join(sys.path),
        "GATEWAY_SIMULATOR_PORT": str(simulator.port),
        "GATEWAY_SIMULATOR_TOKEN": "t",
    }
    command = [sys.executable, "-m", "gateway_simulator"]
    ended = subprocess.run(command, env=environment, capture_output=True, timeout=60)
    assert ended.returncode == 1
    assert b"address already in use" in ended.stderr
