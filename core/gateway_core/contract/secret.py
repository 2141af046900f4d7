"""A Kubernetes Secret as the gateway handles those that it writes itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Secret:
    """A Secret: its data decoded, and of its metadata what says whose it is.

    `owners` are ownerReferences as the Kubernetes API has them. `version` is the resourceVersion
    that was read; empty for one that is to be made.
    """

    name: str
    data: Mapping[str, bytes] = field(repr=False)
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    owners: tuple[Mapping[str, Any], ...] = ()
    version: str = ""
