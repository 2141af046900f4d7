"""Watch-fed tables: what a process knows of one kind without asking.

Fulfilled by `adapters.kube`. A table may lag the record by watch latency; it never goes back.
"""

from collections.abc import Callable, ItemsView
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Listener = Callable[[str], None]
"""Called with an object's name after its entry has changed or gone."""


class Table(Protocol[T_co]):
    """Entries of one kind by object name."""

    @property
    def synced(self) -> bool:
        """Whether a full list has been read once."""
        ...

    @property
    def silence(self) -> float:
        """Seconds since the watch last showed any sign of life; infinite before the first list."""
        ...

    def get(self, name: str) -> T_co | None:
        """The entry, if the table has one."""
        ...

    def items(self) -> ItemsView[str, T_co]:
        """All entries; a live view."""
        ...

    def offer(self, obj: dict[str, Any]) -> T_co | None:
        """Takes in an object that was read or written by name, unless a newer one is known.

        The entry that now stands.
        """
        ...

    def subscribe(self, listener: Listener) -> None:
        """Has `listener` called from now on."""
        ...


class FollowedTable(Table[T_co], Protocol[T_co]):
    """A table that tells how far it has followed the record."""

    async def reach(self, version: int, seconds: float) -> bool:
        """Waits until all up to that resourceVersion is in it; False if that takes longer."""
        ...
