"""Files, an Upload and a batch through the Service, pods killed while the batch runs."""

import json
import time

from tests.e2e.cluster import E2EError, wait_for
from tests.e2e.disturbances import crash, delete
from tests.e2e.objects import BATCH_LINES, describe_storage_user

NAME = "storage-user"
DISTURBED = ((crash, "operator"), (delete, "api"))


def try_storage(cluster, image, say):
    """Has a user do all of it; the seconds that it takes. E2EError if it fails."""
    begin = time.monotonic()
    cluster.apply(*describe_storage_user(NAME, image))

    def has_ended():
        return cluster.get("pod", NAME)["status"]["phase"] in ("Succeeded", "Failed")

    def is_running():
        return "running batch_" in _read_log(cluster) or has_ended()

    wait_for(is_running, "a batch runs", 120)
    for disturb, component in DISTURBED:
        say(f"  {disturb.__name__} of {component}: {disturb(cluster, component):.1f} s")
    wait_for(has_ended, "the user of files and batches has ended", 240)
    log = _read_log(cluster)
    if cluster.get("pod", NAME)["status"]["phase"] != "Succeeded":
        raise E2EError(f"files and batches: {log[-3000:]}")
    counts = json.loads(log.splitlines()[-1])["counts"]
    if counts != {"total": BATCH_LINES, "completed": BATCH_LINES, "failed": 0}:
        raise E2EError(f"the batch counts {counts}")
    shown = cluster.kubectl("get", "gatewaybatches")
    if "Completed" not in shown or str(BATCH_LINES) not in shown:
        raise E2EError(f"`kubectl get gatewaybatches` shows\n{shown}")
    cluster.kubectl("delete", "pod", NAME, "--wait=false")
    return time.monotonic() - begin


def _read_log(cluster):
    return cluster.kubectl("logs", NAME, check=False)
