"""Lists in pages: the envelope, the order of creation, and cursors (contract §3.4, §9). Pure."""

import operator
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from gateway_core.api.ids import SEQUENCE_ANNOTATION
from gateway_core.api.resource import Object

T = TypeVar("T")
Order = Literal["asc", "desc"]
Position = tuple[str, int, str]
"""A place in the order of creation: the second, the version of the record before, the name.

The second is the API server's. Of two made one after the other in it, the later has seen a newer
version of the record, whichever replica made it.
"""


def find_position(obj: Object) -> Position:
    """Where an object stands; it never moves."""
    meta = obj["metadata"]
    text = (meta.get("annotations") or {}).get(SEQUENCE_ANNOTATION, "")
    # an admin may have written any text there
    is_number = text.isascii() and text.isdigit() and len(text) <= 20
    return meta["creationTimestamp"], int(text) if is_number else 0, meta["name"]


def take_page(
    items: Sequence[T],
    position: Callable[[T], Any],
    *,
    after: Any | None,
    limit: int,
    order: Order,
) -> tuple[list[T], bool]:
    """The items after a position in that order, at most `limit`; and whether there are more."""
    ordered = sorted(items, key=position, reverse=order == "desc")
    if after is not None:
        is_beyond = operator.gt if order == "asc" else operator.lt
        ordered = [item for item in ordered if is_beyond(position(item), after)]
    return ordered[:limit], len(ordered) > limit


def wrap_page(shown: Sequence[dict[str, Any]], has_more: bool, field: str = "id") -> dict[str, Any]:
    """The envelope of a list; `field` is what the cursor names."""
    return {
        "object": "list",
        "data": list(shown),
        "first_id": shown[0][field] if shown else None,
        "last_id": shown[-1][field] if shown else None,
        "has_more": has_more,
    }
