"""Which objects' conditions depend on which other object: what a change has looked at again."""

from collections.abc import Iterable

from gateway_operator.controllers.standing.kinds import Ref


class Dependents:
    """References, found by what they lead to. An object referred to need not be there."""

    def __init__(self) -> None:
        self._references: dict[Ref, frozenset[Ref]] = {}
        self._dependents: dict[Ref, set[Ref]] = {}

    def set_references(self, ref: Ref, references: Iterable[Ref]) -> frozenset[Ref]:
        """Has `ref` depend on these alone from now on; what it depended on before."""
        before = self._references.pop(ref, frozenset())
        after = frozenset(references)
        for gone in before - after:
            self._dependents[gone].discard(ref)
            if not self._dependents[gone]:
                del self._dependents[gone]
        for new in after - before:
            self._dependents.setdefault(new, set()).add(ref)
        if after:
            self._references[ref] = after
        return before

    def find(self, ref: Ref) -> tuple[Ref, ...]:
        """Those that depend on `ref`."""
        return tuple(self._dependents.get(ref, ()))
