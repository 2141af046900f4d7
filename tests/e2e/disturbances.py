"""What happens to pods in a cluster: a process dies, a pod is gone at once, a node is drained.

Each function disturbs a component and waits until it is whole again; it returns the seconds that
takes. A drain is played by the eviction API, as `kubectl drain` does, since a cluster of one node
has nowhere to drain to.
"""

import json
import time

from tests.e2e.cluster import E2EError, wait_for
from tests.e2e.objects import SETUP, SHELL

KILL_BY_POD = """
import os, pathlib, signal, sys
uid, killed = sys.argv[1], 0
for folder in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        groups, command = (folder / "cgroup").read_text(), (folder / "cmdline").read_bytes()
    except OSError:
        continue
    if (uid in groups or uid.replace("-", "_") in groups) and b"pause" not in command:
        os.kill(int(folder.name), signal.SIGKILL)
        killed += 1
sys.exit(0 if killed else "no process of that pod")
"""


def crash(cluster, component, name=None):
    """kill -9 of a container's processes from the node: nothing of it ends in order.

    Of the component's oldest pod, or of the one called `name`.
    """
    return _measure(begin_crash(cluster, component, name), f"{component} has started anew")


def begin_crash(cluster, component, name=None):
    """As `crash`, but waits for nothing; a condition that holds once the pod is ready again."""
    victim = _choose(cluster, component, name)
    before = _count_restarts(victim)
    shell = ("kubectl", f"--namespace={SETUP}", "exec", SHELL, "--", "python3", "-c")
    cluster.run(*shell, KILL_BY_POD, victim["metadata"]["uid"])

    def is_back():
        for pod in cluster.pods(component):
            if pod["metadata"]["uid"] == victim["metadata"]["uid"]:
                return _count_restarts(pod) > before and is_ready(pod)
        return False

    return is_back


def delete(cluster, component):
    """A pod deleted without grace, as of a node that is lost."""
    victim = _choose(cluster, component)
    wanted = len(cluster.pods(component))
    name = victim["metadata"]["name"]
    cluster.kubectl("delete", "pod", name, "--force", "--grace-period=0", "--wait=false")
    return _measure(_replaced(cluster, component, victim, wanted), f"{component} is whole again")


def drain(cluster, component):
    """Evicts every pod of a component as far as its budget lets, one after the other.

    E2EError if the budget lets a second one go while the first is not replaced.
    """
    begin = time.monotonic()
    victims, evicted = cluster.pods(component), set()
    for number, victim in enumerate(victims):
        if victim["metadata"]["uid"] not in evicted:
            wait_for(lambda pod=victim: _evict(cluster, pod), f"{component}'s budget has room", 120)
            evicted.add(victim["metadata"]["uid"])
        if number + 1 < len(victims) and _evict(cluster, victims[number + 1]):
            evicted.add(victims[number + 1]["metadata"]["uid"])
            others = [p for p in cluster.pods(component) if p["metadata"]["uid"] not in evicted]
            # unless the first one's successor was ready before this was asked
            if sum(is_ready(pod) for pod in others) < len(victims) - 1:
                raise E2EError(f"two pods of {component} were evicted at once")
        whole = _replaced(cluster, component, victim, len(victims))
        wait_for(whole, f"{component} is whole again after an eviction")
    return time.monotonic() - begin


def is_ready(pod):
    conditions = pod["status"].get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _choose(cluster, component, name=None):
    return [pod for pod in cluster.pods(component) if name in (None, pod["metadata"]["name"])][-1]


def _evict(cluster, pod):
    """Whether the eviction was accepted; E2EError if it is refused for another reason."""
    meta = pod["metadata"]
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": meta["name"], "namespace": meta["namespace"]},
    }
    path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/eviction"
    try:
        cluster.kubectl("create", f"--raw={path}", "--filename=-", stdin=json.dumps(body))
    except E2EError as error:
        if "disruption budget" in str(error):
            return False
        raise
    return True


def _replaced(cluster, component, victim, wanted):
    def is_whole():
        pods = [
            pod
            for pod in cluster.pods(component)
            if pod["metadata"]["uid"] != victim["metadata"]["uid"]
        ]
        return len(pods) >= wanted and all(is_ready(pod) for pod in pods)

    return is_whole


def _count_restarts(pod):
    return sum(status["restartCount"] for status in pod["status"].get("containerStatuses") or ())


def _measure(condition, what):
    begin = time.monotonic()
    wait_for(condition, what)
    return time.monotonic() - begin
