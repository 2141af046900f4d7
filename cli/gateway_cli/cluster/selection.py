"""Which cluster the commands are for: `gatewayctl --kubeconfig FILE --context NAME …`.

Set once by the entry point, before a command runs.
"""

from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Selection:
    """What was chosen on the command line; None leaves it to the environment."""

    kubeconfig: Path | None = None
    context: str | None = None


SELECTED: ContextVar[Selection] = ContextVar("SELECTED", default=Selection())  # noqa: B039 - it is frozen
