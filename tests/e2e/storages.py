"""Files, an Upload and a batch through the Service, pods killed while the batch runs."""

import json
import time

from tests.e2e.cluster import E2EError, wait_for
from tests.e2e.disturbances import crash, delete
from tests.e2e.objects import BATCH_LINES, RELEASE, describe_storage_user

NAME = "storage-user"
SHARD_LABEL = "modelgateway.dev/shard"
OPEN = ("Validating", "InProgress")


def try_storage(cluster, image, say):
    """Has a user do all of it; the seconds that it takes. E2EError if it fails."""
    begin = time.monotonic()
    cluster.apply(*describe_storage_user(NAME, image))

    def has_ended():
        return cluster.get("pod", NAME)["status"]["phase"] in ("Succeeded", "Failed")

    def find_batch():
        if has_ended():
            raise E2EError(f"files and batches: {_read_log(cluster)[-3000:]}")
        found = cluster.get("gatewaybatches")["items"]
        return found[0] if found and _is_begun(found[0]) else None

    batch = wait_for(find_batch, "a batch runs", 120)
    if batch["status"]["phase"] not in OPEN:
        raise E2EError(f"the batch is {batch['status']['phase']} before anything is killed")
    owner = _name_owner(cluster, batch)
    say(f"  crash of {owner}, the batch's: {crash(cluster, 'operator', owner):.1f} s")
    say(f"  delete of api: {delete(cluster, 'api'):.1f} s")
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


def _is_begun(batch):
    return "phase" in batch.get("status", {}) and SHARD_LABEL in batch["metadata"]["labels"]


def _name_owner(cluster, batch):
    """The operator's pod that works the batch, as the operators divide the shards."""
    shard = int(batch["metadata"]["labels"][SHARD_LABEL])
    return f"{RELEASE}-operator-{shard % len(cluster.pods('operator'))}"


def _read_log(cluster):
    return cluster.kubectl("logs", NAME, check=False)
