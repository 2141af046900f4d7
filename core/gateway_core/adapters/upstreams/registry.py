"""Makes the adapter for a provider resource; used by composition roots."""

from gateway_core.adapters.upstreams.http import HttpUpstream
from gateway_core.adapters.upstreams.openai import OpenAIUpstream
from gateway_core.adapters.upstreams.plugins import CodeUpstream
from gateway_core.contract.provider import ProviderSpec
from gateway_core.domain.addresses import AddressPolicy
from gateway_core.ports.moderation import ModerationUpstream
from gateway_core.ports.upstream import Upstream

OPENAI = "openai"


def build_upstream(
    spec: ProviderSpec, credential: bytes | str | None, policy: AddressPolicy
) -> Upstream:
    """The provider as its resource declares it; no I/O happens before its first call.

    Raises ValueError, with what is to be mended, for a resource or credential that cannot be used.
    A type that is not known shows when it is started.
    """
    if spec.type == OPENAI:
        raise ValueError("a provider of type openai has no jobs: it serves no tasks")
    kind = HttpUpstream if spec.type == "http" else CodeUpstream
    return kind(spec, credential, policy)


def build_moderation(spec: ProviderSpec, credential: bytes | str | None) -> ModerationUpstream:
    """The provider as its resource declares it; no I/O happens before its first call.

    Raises ValueError, as above, also for a resource of another type.
    """
    if spec.type != OPENAI:
        raise ValueError(f"a provider of type {spec.type} serves no moderations")
    return OpenAIUpstream(spec, credential)
