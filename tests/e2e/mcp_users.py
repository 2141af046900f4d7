"""The pod of an MCP client's user: sign-in, consent and a tool call, pods killed on the way."""

import time

from tests.e2e.cluster import E2EError, wait_for
from tests.e2e.disturbances import begin_crash
from tests.e2e.objects import describe_mcp_user

NAME = "mcp-user"
KILLED = (
    ("registered", "api", 0),
    ("allowed", "api", 1),
    ("connected", "mcp", 0),
    ("waiting", "mcp", 1),
)
"""Which of two pods is killed when the user has come to a step."""


def try_mcp(cluster, image):
    """Has a user go the whole way; the seconds that it takes. E2EError if it fails."""
    begin = time.monotonic()
    cluster.apply(*describe_mcp_user(NAME, image))
    pods = {component: cluster.pods(component) for _, component, _ in KILLED}
    back = []
    for step, component, number in KILLED:
        wait_for(lambda step=step: _has_reached(cluster, step), f"the user has {step}", 60)
        name = pods[component][number]["metadata"]["name"]
        back.append(begin_crash(cluster, component, name))
        cluster.kubectl("exec", NAME, "--", "touch", f"/tmp/{step}")
    wait_for(lambda: _has_ended(cluster), "the user of the MCP endpoint has ended", 120)
    if cluster.get("pod", NAME)["status"]["phase"] != "Succeeded":
        raise E2EError(f"MCP: {_read_log(cluster)[-3000:]}")
    shown = cluster.kubectl("get", "gatewayoauthclients")
    if "E2E client" not in shown:
        raise E2EError(f"`kubectl get gatewayoauthclients` shows\n{shown}")
    for is_back in back:
        wait_for(is_back, "what was killed has started anew")
    cluster.kubectl("delete", "pod", NAME, "--wait=false")
    return time.monotonic() - begin


def _has_reached(cluster, step):
    if _has_ended(cluster):
        raise E2EError(f"MCP: {_read_log(cluster)[-3000:]}")
    return f"reached {step}\n" in _read_log(cluster)


def _has_ended(cluster):
    return cluster.get("pod", NAME)["status"]["phase"] in ("Succeeded", "Failed")


def _read_log(cluster):
    return cluster.kubectl("logs", NAME, check=False)
