"""Names of the Kubernetes API (group, labels, finalizers) and the opaque ids of the REST API.

An id is 26 base32 characters: a 96-bit body and a 34-bit tag keyed over account and body.
"""

import enum
import hashlib
import hmac
import random
import re
import secrets
import zlib

GROUP = "modelgateway.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
CATEGORY = "modelgateway"

ACCOUNT_LABEL = f"{GROUP}/account"
SHARD_LABEL = f"{GROUP}/shard"
KEY_LABEL = f"{GROUP}/key"
"""On a Secret that the operator wrote: the GatewayKey whose plaintext it contains."""
ROTATIONS_ANNOTATION = f"{GROUP}/rotations"
"""On the same Secret: the key's `spec.rotations` when it was written."""
REQUEST_ID_ANNOTATION = f"{GROUP}/request-id"
GIVEN_DIGEST_ANNOTATION = f"{GROUP}/given-digest"
FINGERPRINT_ANNOTATION = f"{GROUP}/fingerprint"
"""On objects created with an Idempotency-Key: the digest of the input."""
FIRST_HINT_ANNOTATION = f"{GROUP}/first-hint"
"""Hint of a key's first token, for replays of its creation after a rotation."""
SEQUENCE_ANNOTATION = f"{GROUP}/sequence"
"""A resourceVersion from before the object's creation, which orders objects of one second."""
CREATED_ANNOTATION = f"{GROUP}/created"
"""Time at which the API made a task or batch: a restored object has a later creation time."""
REPLAYS_ANNOTATION = f"{GROUP}/replays"
"""Calls with an Idempotency-Key that changed the object: a JSON array of digests."""
PROGRAM = "model-gateway"
"""What the gateway's processes call themselves at the API server."""
OPERATOR_LEASE = f"{PROGRAM}-operator-"
"""Prefix of the Leases that operators renew as their heartbeat; their ordinal follows."""
CHANGES_ANNOTATION = f"{GROUP}/changes"
"""The latest changes of the object, for the audit."""
ENDING_ANNOTATION = f"{GROUP}/ending"
"""By whom the object is deleted, and in which words the audit says so."""
REVOKED_AT_ANNOTATION = f"{GROUP}/revoked-at"
CANCELLED_AT_ANNOTATION = f"{GROUP}/cancelled-at"
"""Time of a client's request to cancel a batch; the operator's own time may be later."""
WITHDRAWN_ANNOTATION = f"{GROUP}/withdrawn"
"""On an Upload that was cancelled for lack of storage: its creation was rejected."""
UNCHECKED_ANNOTATION = f"{GROUP}/unchecked"
"""On a guardrail whose name has not been checked for uniqueness yet."""
TRACEPARENT_ANNOTATION = f"{GROUP}/traceparent"
"""A task's trace as W3C Trace Context, where tracing is on."""
TASK_FINALIZER = f"{GROUP}/upstream-job"
FOLDED_LABEL = f"{GROUP}/folded"
"""Time when an ended task, archived and in its account's usage, was closed; never removed."""
CHARGED = "charged"
"""Value of that label while the run is in the usage, but not closed yet."""

SHARDS = 16
"""Shards of the operator's work; a task's shard is fixed at its creation."""

STORED_FINALIZER = f"{GROUP}/stored-bytes"
"""On files and uploads: their bytes are removed before the object."""
BATCH_FINALIZER = f"{GROUP}/batch-run"
"""On batches: they are charged and their results removed before the object."""

REMAINS_FINALIZER = f"{GROUP}/remains"
"""On accounts, users and declared OAuth clients: what is theirs is removed before the object.

On keys, guardrails and grants: their rows of the audit are archived before."""

TASK_PREFIX = "task"
FILE_PREFIX = "file"
UPLOAD_PREFIX = "upload"
PART_PREFIX = "part"
BATCH_PREFIX = "batch"
CALL_PREFIX = "call-"
"""Prefix of reservations of calls without an object; no object's name has it."""


def shard_of(name: str) -> int:
    """Return the shard (0 to 15) of the object `name`; the same on every replica and release."""
    return zlib.crc32(name.encode()) % SHARDS


def head_of(prefix: str) -> str:
    """Start of ids of a prefix: `file-` for Files, with an underscore for others (§0.4)."""
    return prefix + ("-" if prefix == FILE_PREFIX else "_")


def is_batch(name: str) -> bool:
    """Return whether the run of that object name is a GatewayBatch.

    Every other run is a GatewayTask.
    """
    return name.startswith(f"{BATCH_PREFIX}-")


def is_call(name: str) -> bool:
    """Return whether a reservation of that name is of a call without an object."""
    return name.startswith(CALL_PREFIX)


def id_to_name(wire_id: str) -> str:
    """Return the object name `task-abc` of the id `task_abc`: object names allow no underscore."""
    return wire_id.replace("_", "-", 1)


def name_to_id(name: str) -> str:
    """Return the id `task_abc` of the object name `task-abc`; the inverse of `id_to_name`."""
    prefix, dash, rest = name.partition("-")
    return head_of(prefix) + rest if dash else name


def read_id(prefix: str, text: str) -> str:
    """Return the id that people write as `task_abc`, or as the object's name `task-abc`."""
    for start in (f"{prefix}-", f"{prefix}_"):
        if text.startswith(start):
            return head_of(prefix) + text.removeprefix(start)
    return text


BODY_BYTES = 12
TAG_BITS = 34
_SHAPE = re.compile(r"[a-z2-7]{26}")
_BITS = 8 * BODY_BYTES + TAG_BITS
_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
# every request handles ids, and the standard library's Base32 takes longer than a look-up of a key
_PAIRS = tuple(high + low for high in _ALPHABET for low in _ALPHABET)
_PLACES = tuple(range(_BITS - 10, -1, -10))
_TO_BASE32 = bytes.maketrans(b"0189", b"ghij")
_requests = random.Random()  # noqa: S311 - the ids of requests are no secrets
_DIGITS = str.maketrans(_ALPHABET, "0123456789abcdefghijklmnopqrstuv")
"""From Base32 digits to those of `int`."""


class Ownership(enum.Enum):
    """Result of checking an id by itself, without a look-up."""

    MINTED = "minted"  # made by this gateway for this account
    FOREIGN = "foreign"  # of the minted shape, but its tag is not this account's
    NAMED = "named"  # of another shape: an object that an admin named


class IdMint:
    """Mints and checks ids under one secret key (32 bytes, the same in every replica)."""

    def __init__(self, key: bytes) -> None:
        if len(key) < 16:
            raise ValueError("the id key must have at least 16 bytes")
        self._key = key
        self._last = 0

    def mint_random(self, prefix: str, account: str) -> str:
        """Return a new unguessable id such as `task_…` for `account`."""
        return self._assemble(prefix, account, secrets.token_bytes(BODY_BYTES))

    def mint_keyed(self, prefix: str, account: str, *parts: str) -> str:
        """Return the constant id of (account, parts): the lock of an idempotent create (§2.2)."""
        message = b"\0".join(part.encode() for part in ("body", prefix, account, *parts))
        body = hmac.digest(self._key, message, hashlib.sha256)[:BODY_BYTES]
        return self._assemble(prefix, account, body)

    def mint_ordered(self, prefix: str, account: str, unix_ms: int) -> str:
        """Return a new id whose `read_order` is greater than all that this process minted (§0.4).

        Between processes the clock decides; within a millisecond the next is a random step greater.
        """
        self._last = max(
            unix_ms << 48 | secrets.randbits(48), self._last + 1 + secrets.randbelow(2**24)
        )
        return self._assemble(prefix, account, self._last.to_bytes(BODY_BYTES, "big"))

    def check(self, prefix: str, account: str, wire_id: str) -> Ownership:
        """Return whether `wire_id` was minted for `account`; in constant time."""
        head = head_of(prefix)
        text = wire_id[len(head) :]
        if not wire_id.startswith(head) or not _SHAPE.fullmatch(text):
            return Ownership.NAMED
        value = _decode(text)
        body = (value >> TAG_BITS).to_bytes(BODY_BYTES, "big")
        expected = self._tag(prefix, account, body)
        given = value & ((1 << TAG_BITS) - 1)
        same = hmac.compare_digest(expected.to_bytes(5, "big"), given.to_bytes(5, "big"))
        return Ownership.MINTED if same else Ownership.FOREIGN

    def _assemble(self, prefix: str, account: str, body: bytes) -> str:
        value = (int.from_bytes(body, "big") << TAG_BITS) | self._tag(prefix, account, body)
        return head_of(prefix) + _encode(value)

    def _tag(self, prefix: str, account: str, body: bytes) -> int:
        message = b"\0".join((b"tag", prefix.encode(), account.encode(), body))
        digest = hmac.digest(self._key, message, hashlib.sha256)
        return int.from_bytes(digest[:5], "big") >> 6


def read_order(wire_id: str) -> int:
    """Sort key of an id minted in order; 0 for other ids.

    Base32 text does not sort like its number.
    """
    text = wire_id[-26:]
    return _decode(text) >> TAG_BITS if _SHAPE.fullmatch(text) else 0


def _encode(value: int) -> str:
    return "".join([_PAIRS[value >> place & 1023] for place in _PLACES])


def _decode(text: str) -> int:
    return int(text.translate(_DIGITS), 32)


def mint_request_id() -> str:
    """Return a new `req_…` id; it names no object, so it has no tag (contract §0.8)."""
    # bytes: the translation of a string costs four times as much
    text = b"req_%026x" % _requests.getrandbits(104)
    return text.translate(_TO_BASE32).decode()
