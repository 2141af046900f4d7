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
KEY_LABEL = f"{GROUP}/key"
"""On a Secret that the operator wrote: the GatewayKey whose plaintext it holds."""
ROTATIONS_ANNOTATION = f"{GROUP}/rotations"
"""On the same: the key's `spec.rotations` when it was written."""
REQUEST_ID_ANNOTATION = f"{GROUP}/request-id"
GIVEN_DIGEST_ANNOTATION = f"{GROUP}/given-digest"
FINGERPRINT_ANNOTATION = f"{GROUP}/fingerprint"
"""On what was made with an Idempotency-Key: the digest of the input it stands for."""
FIRST_HINT_ANNOTATION = f"{GROUP}/first-hint"
"""The hint of the token a key was made with, for replays after it was rotated."""
SEQUENCE_ANNOTATION = f"{GROUP}/sequence"
"""A version of the record from before the object was made: the order of those of one second."""
REPLAYS_ANNOTATION = f"{GROUP}/replays"
"""Calls with an Idempotency-Key that changed the object: a JSON array of digests."""
REVOKED_AT_ANNOTATION = f"{GROUP}/revoked-at"
CANCELLED_AT_ANNOTATION = f"{GROUP}/cancelled-at"
"""When a client asked for the end of a batch; the operator's own time for it may be later."""
WITHDRAWN_ANNOTATION = f"{GROUP}/withdrawn"
"""On an Upload that was cancelled since there was no room for it: its create was refused."""
UNCHECKED_ANNOTATION = f"{GROUP}/unchecked"
"""On a guardrail of which it is not known yet whether its name is the only one."""
TRACEPARENT_ANNOTATION = f"{GROUP}/traceparent"
"""The trace that a task belongs to, as W3C Trace Context writes it; where tracing is on."""
TASK_FINALIZER = f"{GROUP}/upstream-job"
FOLDED_LABEL = f"{GROUP}/folded"
"""When an ended task was archived and its charge folded into its account's usage; never removed."""

SHARDS = 16
"""How many shards the operator's work is divided into; a task's shard is fixed at its creation."""

STORED_FINALIZER = f"{GROUP}/stored-bytes"
"""On files and uploads: their bytes are removed before they go."""
BATCH_FINALIZER = f"{GROUP}/batch-run"
"""On batches: the charge is folded and the results are removed before they go."""

TASK_PREFIX = "task"
FILE_PREFIX = "file"
UPLOAD_PREFIX = "upload"
PART_PREFIX = "part"
BATCH_PREFIX = "batch"
CALL_PREFIX = "call-"
"""What the holds of calls begin with that leave no object; no object's name does."""


def shard_of(name: str) -> int:
    """The shard (0 to 15) of an object called `name`; the same on every replica and release."""
    return zlib.crc32(name.encode()) % SHARDS


def head_of(prefix: str) -> str:
    """What ids of that prefix begin with: `file-` for Files, `task_` and the like else (§0.4)."""
    return prefix + ("-" if prefix == FILE_PREFIX else "_")


def is_batch(name: str) -> bool:
    """Whether a run of that object name is a GatewayBatch; else it is a GatewayTask."""
    return name.startswith(f"{BATCH_PREFIX}-")


def id_to_name(wire_id: str) -> str:
    """`task_abc` becomes `task-abc`: object names allow no underscore."""
    return wire_id.replace("_", "-", 1)


def name_to_id(name: str) -> str:
    """`task-abc` becomes `task_abc`; the inverse of `id_to_name` for every name of ours."""
    prefix, dash, rest = name.partition("-")
    return head_of(prefix) + rest if dash else name
