"""A user of an MCP client: sign-in, consent and a tool call, pods killed on the way."""

import time

from tests.e2e.clients import MCP_USER, ClientPod
from tests.e2e.cluster import E2EError, wait_for
from tests.e2e.disturbances import begin_crash

KILLED = (
    ("registered", "api", 0),
    ("allowed", "api", 1),
    ("connected", "mcp", 0),
    ("waiting", "mcp", 1),
)
"""Which of two pods is killed when the user has come to a step."""


def try_mcp(cluster, image):
    """Have a user go the whole way; return the seconds that it takes. E2EError if it fails."""
    begin = time.monotonic()
    user = ClientPod(cluster, MCP_USER)
    user.start(image)
    pods = {component: cluster.pods(component) for _, component, _ in KILLED}
    back = []
    for step, component, number in KILLED:
        user.wait_reached(step, 60)
        back.append(begin_crash(cluster, component, pods[component][number]["metadata"]["name"]))
        user.go_on(step)
    user.wait_ended(120)
    shown = cluster.kubectl("get", "gatewayoauthclients")
    if "E2E client" not in shown:
        raise E2EError(f"`kubectl get gatewayoauthclients` shows\n{shown}")
    for is_back in back:
        wait_for(is_back, "what was killed has started anew")
    user.remove()
    return time.monotonic() - begin
