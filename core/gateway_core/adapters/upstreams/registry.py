"""Makes the adapter for a provider resource; used by the operator's composition root."""

from gateway_core.adapters.upstreams.http import HttpUpstream
from gateway_core.adapters.upstreams.plugins import CodeUpstream
from gateway_core.contract.provider import ProviderSpec
from gateway_core.domain.addresses import AddressPolicy
from gateway_core.ports.upstream import Upstream


def build_upstream(
    spec: ProviderSpec, credential: bytes | str | None, policy: AddressPolicy
) -> Upstream:
    """The provider as its resource declares it; no I/O happens before its first call.

    Raises ValueError, with what is to be mended, for a resource or credential that cannot be used.
    A type that is not known shows when it is started.
    """
    kind = HttpUpstream if spec.type == "http" else CodeUpstream
    return kind(spec, credential, policy)
