"""A provider that judges texts and images at once, in the OpenAI dialect (contract §6).

Fulfilled by `adapters.upstreams.openai`, used by the API for single calls and by the operator for
batches.
"""

from collections.abc import Mapping
from typing import Any, Protocol


class ModerationUpstream(Protocol):
    """One provider as its resource declares it."""

    async def moderate(
        self, body: Mapping[str, Any], *, traceparent: str | None = None
    ) -> dict[str, Any]:
        """The provider's answer to `body`, in which `model` is what the provider calls it.

        The answer is well formed by §6: one result for each text, all 13 categories, what the
        provider leaves out made up. Raises of `ports.upstream`: UpstreamRejected for an input that
        it refuses for good, UpstreamBusy (429, 503, no connection; `retry_after`), UpstreamDenied
        for our credentials, UpstreamUnclear for all else (5xx, time-out, nonsense). It tries once.
        """
        ...

    async def close(self) -> None:
        """Frees connections."""
        ...
