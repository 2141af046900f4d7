"""Code adapters: providers that a resource of type `http` cannot describe, by Python entry points.

A package outside of this project offers, in the entry point group `GROUP`, a factory under the name
that `GatewayProvider.spec.type` gives. It is loaded and called by `adapters.upstreams`, in a thread
with an event loop of its own; `docs/providers.md` has a complete example.
"""

from dataclasses import dataclass
from typing import Protocol

from gateway_core.domain.addresses import AddressPolicy
from gateway_core.ports.upstream import Upstream

GROUP = "model_gateway.upstreams"


@dataclass(frozen=True, slots=True)
class AdapterSetup:
    """What a factory makes an adapter of.

    `config` is `spec.config` as it stands, `credential` the Secret's value without white space
    around it, None where the resource names none. `addresses` says where outputs may be fetched
    from. The gateway itself keeps to `maxConcurrentRequests`.
    """

    config: str
    credential: str | None
    resubmits_unknown: bool
    addresses: AddressPolicy


class AdapterFactory(Protocol):
    """Makes the adapter of one resource."""

    def __call__(self, setup: AdapterSetup) -> Upstream:
        """The adapter; no I/O happens before its `start`.

        Raises ValueError, saying what is to be mended, for a config or credential that cannot be
        used; an admin reads it in the resource's `Ready` condition.
        """
        ...


class AdapterMissing(Exception):
    """No package, or more than one, offers an adapter of the type's name."""


class AdapterFailed(Exception):
    """The adapter could not be loaded or started. The text holds no secret."""
