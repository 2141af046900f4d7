"""Several API processes on one port, with their parent."""

import http.client
import os
import signal
import time
import urllib.error
import urllib.request

import psutil
from prometheus_client.parser import text_string_to_metric_families

from tests.servers.replica import Replica
from tests.servers.world import wait_for

CONNECTIONS = 12
"""All at one worker once in two thousand runs."""


def read_health(replica, path):
    try:
        with urllib.request.urlopen(replica.health_url + path, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""


def read_metric(replica, name, label="worker"):
    """Values by the label, summed over the others."""
    found = {}
    for family in text_string_to_metric_families(read_health(replica, "/metrics")[1]):
        for sample in family.samples:
            if sample.name == name and label in sample.labels:
                value = sample.labels[label]
                found[value] = found.get(value, 0) + sample.value
    return found


def find_workers(replica):
    return {child.pid for child in psutil.Process(replica.pid).children()}


class Connection:
    """One connection that is never opened anew."""

    def __init__(self, replica, key):
        self._http = http.client.HTTPConnection("127.0.0.1", replica.port, timeout=20)
        self._http.connect()
        self._http.auto_open = False
        self._headers = {"Authorization": f"Bearer {key}"}

    def get(self):
        self._http.request("GET", "/api/v1/me/balance", headers=self._headers)
        return self.read()

    def begin(self):
        """Sends a request without the end of its body."""
        self._http.putrequest("POST", "/v1/chat/completions")
        own = {"Content-Type": "application/json", "Content-Length": "2"}
        for name, value in {**self._headers, **own}.items():
            self._http.putheader(name, value)
        self._http.endheaders(b"{")

    def end(self):
        self._http.send(b"}")
        return self.read()

    def read(self):
        answer = self._http.getresponse()
        answer.read()
        return answer.status


async def test_workers_serve_one_port_and_outlive_each_other(world, shared_account):
    _, key = shared_account
    with Replica(world, "api", GATEWAY_WORKERS="2", GATEWAY_LINGER_SECONDS="1") as replica:
        served = dict[Connection, str]()
        for _ in range(CONNECTIONS):
            before = read_metric(replica, "gateway_http_requests_total")
            connection = Connection(replica, key)
            assert connection.get() == 200
            after = read_metric(replica, "gateway_http_requests_total")
            (served[connection],) = (
                worker for worker in after if after[worker] != before.get(worker)
            )
        assert set(served.values()) == {"0", "1"}

        old = find_workers(replica)
        victim = min(old)
        os.kill(victim, signal.SIGKILL)
        lost, kept = set(), set()
        for connection, worker in served.items():
            try:
                assert connection.get() == 200
                kept.add(worker)
            except (http.client.HTTPException, OSError):
                lost.add(worker)
        (dead,), (alive,) = lost, kept
        assert read_health(replica, "/readyz")[0] == 200
        counted = read_metric(replica, "gateway_http_requests_total")[alive]
        assert counted > after[alive]

        async def is_back():
            return set(read_metric(replica, "gateway_connections")) == {"0", "1"}

        await wait_for(is_back, what="the restart")
        assert len(find_workers(replica) - old) == 1
        failures = read_metric(replica, "gateway_unexpected_failures_total", "loop")
        assert failures[f"worker_{dead}"] == 1
        requests = read_metric(replica, "gateway_http_requests_total")
        assert requests[alive] >= counted
        assert requests.get(dead, 0) < after[dead]

        async def listens():
            return Connection(replica, key).get() == 200 and len(replica_listeners(replica)) == 2

        await wait_for(listens, what="the port")
        late = [Connection(replica, key) for _ in range(CONNECTIONS)]
        for connection in late:
            connection.begin()
        begun = time.monotonic()
        replica.terminate()
        await wait_for(lambda: read_health(replica, "/readyz")[0] == 503, what="the drain")
        # bodies that arrive when the workers accept no more
        await wait_for(lambda: not replica_listeners(replica), what="the end of the linger")
        assert {connection.end() for connection in late} == {400}
        assert replica.wait_ended() == 0
        assert time.monotonic() - begun < 1 + 15


def replica_listeners(replica):
    """The processes that accept connections on the client port."""
    return {
        pid
        for pid in find_workers(replica)
        for each in psutil.Process(pid).net_connections("tcp")
        if each.status == psutil.CONN_LISTEN and each.laddr.port == replica.port
    }
