"""Files, an Upload and a batch through the Service, pods killed while the batch runs."""

import json
import time

from tests.e2e.clients import STORAGE, ClientPod
from tests.e2e.cluster import E2EError, wait_for
from tests.e2e.disturbances import crash, delete
from tests.e2e.objects import BATCH_LINES, RELEASE

SHARD_LABEL = "modelgateway.dev/shard"
OPEN = ("Validating", "InProgress")


def try_storage(cluster, image, say):
    """Have a user do all of it; return the seconds that it takes. E2EError if it fails."""
    begin = time.monotonic()
    user = ClientPod(cluster, STORAGE)
    user.start(image)

    def find_batch():
        user.check_running()
        found = cluster.get("gatewaybatches")["items"]
        return found[0] if found and _is_begun(found[0]) else None

    batch = wait_for(find_batch, "a batch runs", 120)
    if batch["status"]["phase"] not in OPEN:
        raise E2EError(f"the batch is {batch['status']['phase']} before anything is killed")
    owner = _name_owner(cluster, batch)
    say(f"  crash of {owner}, the batch's: {crash(cluster, 'operator', owner):.1f} s")
    say(f"  delete of api: {delete(cluster, 'api'):.1f} s")
    counts = json.loads(user.wait_ended().splitlines()[-1])["counts"]
    if counts != {"total": BATCH_LINES, "completed": BATCH_LINES, "failed": 0}:
        raise E2EError(f"the batch counts {counts}")
    shown = cluster.kubectl("get", "gatewaybatches")
    if "Completed" not in shown or str(BATCH_LINES) not in shown:
        raise E2EError(f"`kubectl get gatewaybatches` shows\n{shown}")
    user.remove()
    return time.monotonic() - begin


def _is_begun(batch):
    return "phase" in batch.get("status", {}) and SHARD_LABEL in batch["metadata"]["labels"]


def _name_owner(cluster, batch):
    """Return the name of the batch's operator, as the operators divide the shards."""
    shard = int(batch["metadata"]["labels"][SHARD_LABEL])
    return f"{RELEASE}-operator-{shard % len(cluster.pods('operator'))}"
