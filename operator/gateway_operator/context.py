"""What the controllers of every kind have in common: stores, clock, identity and observation."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from gateway_core.api.ids import IdMint
from gateway_core.api.resource import Resource
from gateway_core.api.times import parse_time
from gateway_core.kube.client import KubernetesClient
from gateway_core.storage.objects import ObjectStore
from gateway_operator.failpoints import Failpoints
from gateway_operator.metrics import Metrics
from gateway_operator.shards import Shards


@dataclass(frozen=True, slots=True)
class Context:
    """Passed to each controller. `now` returns the aware time of day by the API server's clock."""

    kube: KubernetesClient
    store: ObjectStore
    shards: Shards
    mint: IdMint
    failpoints: Failpoints
    metrics: Metrics
    now: Callable[[], datetime]

    def age(self, resource: Resource) -> float:
        """Seconds since the resource was created."""
        return self.seconds_since(resource.metadata.creation_timestamp)

    def seconds_since(self, time: str | None) -> float:
        """Seconds since an RFC 3339 time."""
        return (self.now() - parse_time(time)).total_seconds()
