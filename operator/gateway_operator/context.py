"""What all controllers have in common: stores, clock, identity, shards, failpoints and events.

An object's shard is a label, fixed at its creation, and a shard's owner follows from the number of
replicas and a replica's ordinal: there is no election and no lease to lose. Two owners of one shard
are possible for a while (a change of the number of replicas, a paused process) and do no harm.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gateway_core import failpoints
from gateway_core.api.ids import (
    ACCOUNT_LABEL,
    SHARD_LABEL,
    SHARDS,
    STORED_FINALIZER,
    IdMint,
    Ownership,
    name_to_id,
    shard_of,
)
from gateway_core.api.resource import Object, Resource
from gateway_core.api.times import parse_time
from gateway_core.kube.client import KubernetesClient
from gateway_core.storage.objects import ObjectStore
from gateway_operator.events import Events, Post
from gateway_operator.metrics import Metrics
from gateway_operator.termination import Termination

NAMES = (
    "before-intent",
    "after-intent",
    "after-submit",
    "after-running",
    "before-outputs",
    "after-outputs",
    "after-terminal",
    "before-callback",
    "after-callback",
    "after-callback-record",
    "after-archive",
    "after-settle",
    "after-fold",
    "after-finalizer",
    "before-removal",
    "after-removal",
    "after-journal-fold",
    "before-journal-removal",
    "after-journal-removal",
    "after-key-secret",
    "before-batch-start",
    "after-batch-start",
    "before-batch-checkpoint",
    "after-batch-checkpoint",
    "before-batch-run-end",
    "after-batch-run-end",
    "after-batch-bytes",
    "after-batch-file",
    "before-batch-end",
    "after-batch-end",
    "after-batch-settle",
    "after-batch-fold",
    "after-batch-removal",
    "after-batch-finalizer",
    "after-file-release",
    "after-file-bytes",
    "after-file-upload",
    "after-file-finalizer",
    "after-upload-outcome",
    "after-upload-file",
    "after-upload-move",
    "after-upload-parts",
    "after-upload-finalizer",
    "after-upload-settled",
    "before-orphan-removal",
    "after-remains-page",
    "after-books-closed",
    "after-remains",
    "after-history",
)


class Failpoints(failpoints.Failpoints):
    """The operator's failpoints."""

    names = NAMES


_WORDS = frozenset(map(str, range(SHARDS)))


@dataclass(frozen=True, slots=True)
class Shards:
    """The shards of this replica, out of 16, by number from 0."""

    numbers: frozenset[int] = frozenset(range(SHARDS))

    @classmethod
    def divide(cls, replicas: int, ordinal: int) -> "Shards":
        """Return the shards of replica `ordinal` (from 0) of `replicas`."""
        return cls(frozenset(n for n in range(SHARDS) if n % replicas == ordinal))

    @property
    def owns_rest(self) -> bool:
        """True if singleton work, and objects without a shard, are this replica's."""
        return 0 in self.numbers

    @property
    def selector(self) -> str:
        """A label selector for the tasks owned; empty if that is all of them."""
        if len(self.numbers) == SHARDS:
            return ""
        if not self.owns_rest:
            return f"{SHARD_LABEL} in ({_join(self.numbers)})"
        others = frozenset(range(SHARDS)) - self.numbers
        return f"{SHARD_LABEL} notin ({_join(others)})"

    def owns(self, labels: Mapping[str, str] | None) -> bool:
        """Return whether an object with these labels is this replica's; unlabelled is shard 0."""
        word = (labels or {}).get(SHARD_LABEL, "")
        return (int(word) if word in _WORDS else 0) in self.numbers

    def owns_name(self, name: str) -> bool:
        """Return whether an object of this name is this replica's once it has its label."""
        return shard_of(name) in self.numbers

    @property
    def share(self) -> float:
        """This replica's part of all shards, 0 to 1."""
        return len(self.numbers) / SHARDS

    def scale(self, limit: int) -> int:
        """This replica's part of a limit that all replicas share; at least 1."""
        return max(1, limit * len(self.numbers) // SHARDS)


def find_lacking(obj: Object, finalizer: str = STORED_FINALIZER) -> dict[str, Any]:
    """Return the patch of an object's metadata that gives it the labels and finalizer it lacks."""
    meta, account = obj["metadata"], obj["spec"]["request"]["accountName"]
    labels, finalizers = meta.get("labels") or {}, meta.get("finalizers") or []
    wanted = {ACCOUNT_LABEL: account, SHARD_LABEL: str(shard_of(meta["name"]))}
    lacking: dict[str, Any] = {}
    if not wanted.items() <= labels.items():
        lacking["labels"] = wanted
    if finalizer not in finalizers:
        lacking["finalizers"] = [*finalizers, finalizer]
    return lacking


def _join(numbers: frozenset[int]) -> str:
    return ",".join(map(str, sorted(numbers)))


@dataclass(slots=True)
class Context:
    """Passed to each controller. `now` returns the aware time of day by the API server's clock."""

    kube: KubernetesClient
    store: ObjectStore
    shards: Shards
    mint: IdMint
    failpoints: Failpoints
    metrics: Metrics
    now: Callable[[], datetime]
    post: Post
    events: Events = field(init=False)
    termination: Termination = field(init=False)

    def __post_init__(self) -> None:
        self.events = Events(self.kube, self.post)
        self.termination = Termination(self.kube, deletes=self.shards.owns_rest)

    def is_minted(self, prefix: str, name: str, account: str) -> bool:
        """Return whether the API has made an object's name for the account, by its tag."""
        return self.mint.check(prefix, account, name_to_id(name)) is Ownership.MINTED

    def age(self, resource: Resource) -> float:
        """Return seconds since the resource was created."""
        return self.seconds_since(resource.metadata.creation_timestamp)

    def seconds_since(self, time: str | None) -> float:
        """Return seconds since an RFC 3339 time."""
        return (self.now() - parse_time(time)).total_seconds()
