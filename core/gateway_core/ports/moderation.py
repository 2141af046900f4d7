"""A provider that judges texts and images at once, in the OpenAI dialect (contract §6).

Fulfilled by `adapters.upstreams.openai`, used by the API for single calls and by the operator for
batches.
"""

from collections.abc import Mapping
from typing import Any, Protocol


class ModerationUpstream(Protocol):
    """One provider as its resource declares it. What has a value here has it unless it differs."""

    @property
    def trouble(self) -> str | None:
        """What keeps it from being used at present, for an admin; None if nothing does."""
        return None

    @property
    def limit(self) -> int:
        """Calls that it takes at a time; further ones wait for a turn."""
        ...

    async def start(self) -> None:
        """Called once, before any other call."""
        return None

    async def moderate(
        self, body: Mapping[str, Any], *, traceparent: str | None = None
    ) -> dict[str, Any]:
        """The provider's answer to `body`, in which `model` is what the provider calls it.

        The body is one that `domain.moderations.read_call` takes. The answer is well formed by §6:
        one result for each text, all 13 categories, what the provider leaves out made up; its
        `model` is that of the body. It asks once. Raises of `ports.upstream`: UpstreamRejected for
        an input that it refuses for good, UpstreamBusy (503, no connection, no turn;
        `retry_after`) and of these UpstreamLimited (429), UpstreamDenied for our credentials,
        UpstreamUnclear for all else (5xx, nonsense) and of these UpstreamTimedOut.
        """
        ...

    async def close(self) -> None:
        """Frees connections."""
        ...
