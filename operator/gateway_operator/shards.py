"""Which shard a task is worked by, from its label."""

from collections.abc import Mapping
from typing import Any

from gateway_core.contract.names import SHARD_LABEL, SHARDS

_WORDS = frozenset(map(str, range(SHARDS)))


def find_shard(meta: Mapping[str, Any]) -> int:
    """The shard a task is labelled with; what has none, or one there is not, is shard 0's."""
    label = (meta.get("labels") or {}).get(SHARD_LABEL, "")
    return int(label) if label in _WORDS else 0
