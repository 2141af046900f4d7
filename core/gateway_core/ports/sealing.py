"""Texts that only this gateway can make and read: what an address says is in it, and nobody's else.

Fulfilled by `adapters.sealing`.
"""

from typing import Protocol


class Sealer(Protocol):
    """Seals bytes for a purpose; one content always gives one text, of `[A-Za-z0-9_-]`."""

    def seal(self, purpose: str, content: bytes) -> str:
        """The sealed text: it tells nothing but the content's length."""
        ...

    def unseal(self, purpose: str, text: str) -> bytes | None:
        """The content; None of a text that was not sealed by this gateway for this purpose."""
        ...
