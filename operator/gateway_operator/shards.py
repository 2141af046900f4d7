"""The shards of this replica, out of 16.

An object's shard is a label, fixed at its creation, and a shard's owner follows from the number of
replicas and a replica's ordinal: there is no election and no lease to lose. Two owners of one shard
are possible for a while (a change of the number of replicas, a paused process) and do no harm.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway_core.api.ids import ACCOUNT_LABEL, SHARD_LABEL, SHARDS, STORED_FINALIZER, shard_of
from gateway_core.api.resource import Object

_WORDS = frozenset(map(str, range(SHARDS)))


@dataclass(frozen=True, slots=True)
class Shards:
    """The numbers (0 to 15) that are owned."""

    numbers: frozenset[int] = frozenset(range(SHARDS))

    @classmethod
    def divide(cls, replicas: int, ordinal: int) -> "Shards":
        """The shards of replica `ordinal` (from 0) of `replicas`."""
        return cls(frozenset(n for n in range(SHARDS) if n % replicas == ordinal))

    @property
    def owns_rest(self) -> bool:
        """Whether singleton work, and objects without a shard, are this replica's."""
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
        """Whether an object with these labels is this replica's; shard 0 has those without one."""
        word = (labels or {}).get(SHARD_LABEL, "")
        return (int(word) if word in _WORDS else 0) in self.numbers

    def owns_name(self, name: str) -> bool:
        """Whether an object of this name is this replica's once it has its label."""
        return shard_of(name) in self.numbers

    @property
    def share(self) -> float:
        """This replica's part of all shards, 0 to 1."""
        return len(self.numbers) / SHARDS

    def scale(self, limit: int) -> int:
        """This replica's part of a limit that all replicas share; at least 1."""
        return max(1, limit * len(self.numbers) // SHARDS)


def find_lacking(obj: Object, finalizer: str = STORED_FINALIZER) -> dict[str, Any]:
    """The patch of an object's metadata that gives it the labels and finalizer it lacks."""
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
