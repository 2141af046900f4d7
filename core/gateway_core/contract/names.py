"""Names that are part of the Kubernetes contract: group, labels, finalizer, ids as names.

Used wherever an object is named, labelled or selected.
"""

import zlib

GROUP = "modelgateway.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
CATEGORY = "modelgateway"

ACCOUNT_LABEL = f"{GROUP}/account"
SHARD_LABEL = f"{GROUP}/shard"
KEY_ID_LABEL = f"{GROUP}/key-id"
REQUEST_ID_ANNOTATION = f"{GROUP}/request-id"
GIVEN_DIGEST_ANNOTATION = f"{GROUP}/given-digest"
TRACEPARENT_ANNOTATION = f"{GROUP}/traceparent"
"""The trace that a task belongs to, as W3C Trace Context writes it; where tracing is on."""
TASK_FINALIZER = f"{GROUP}/upstream-job"
FOLDED_LABEL = f"{GROUP}/folded"
"""When an ended task was archived and its charge folded into its account's usage; never removed."""

SHARDS = 16
"""How many shards the operator's work is divided into; a task's shard is fixed at its creation."""

TASK_PREFIX = "task"


def shard_of(name: str) -> int:
    """The shard (0 to 15) of an object called `name`; the same on every replica and release."""
    return zlib.crc32(name.encode()) % SHARDS


def id_to_name(wire_id: str) -> str:
    """`task_abc` becomes `task-abc`: object names allow no underscore."""
    return wire_id.replace("_", "-", 1)


def name_to_id(name: str) -> str:
    """`task-abc` becomes `task_abc`; the inverse of `id_to_name` for every name of ours."""
    return name.replace("-", "_", 1)
