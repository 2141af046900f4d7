"""What the controller asks of each standing kind, and the words that they answer in."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from gateway_core.contract.resource import Resource
from gateway_core.domain.catalog import Problem
from gateway_core.ports.caches import Table

R = TypeVar("R", bound=Resource)

Ref = str
"""An object of any kind: `<plural>/<name>`."""


def refer(kind: type[Resource], name: str) -> Ref:
    """The object of that kind and name, whether it is there or not."""
    return f"{kind.plural}/{name}"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a look at an object came to.

    `problem` keeps it from being used; `status` is to be written beside the condition; and after
    `again_in` seconds time alone may have changed something.
    """

    problem: Problem | None = None
    status: Mapping[str, Any] = field(default_factory=dict)
    again_in: float | None = None


class StandingKind(Protocol[R]):
    """The rules of one kind."""

    kind: type[R]
    table: Table[R]

    contested: str
    """Plural of what its objects compete for: a change of one is felt by the others that refer to
    the same of these. Empty for none."""

    def list_references(self, obj: R) -> Iterable[Ref]:
        """The objects that its condition depends on, there or not."""
        ...

    async def check(self, obj: R) -> Finding:
        """Whether it can be used."""
        ...
