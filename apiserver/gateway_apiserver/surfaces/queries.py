"""The queries of lists: `after`, `limit`, `order` and the like, each at most once (§3.4, §5.2)."""

from dataclasses import dataclass
from urllib.parse import parse_qsl

from gateway_apiserver.paging import Order as Order
from gateway_apiserver.surfaces.bodies import check_word, invalid
from gateway_core.api.errors import InvalidRequest

_MOST_FIELDS = 100


@dataclass(frozen=True, slots=True)
class ListQuery:
    """Which part of a list is wanted; `after` is an id that nobody has looked at."""

    after: str | None
    limit: int
    order: Order


def read_query(raw: bytes) -> dict[str, str]:
    """The parameters, of which none may be there twice. InvalidRequest."""
    try:
        items = parse_qsl(
            raw.decode("latin-1"), keep_blank_values=True, max_num_fields=_MOST_FIELDS
        )
    except ValueError:
        raise InvalidRequest("The query has too many parameters.") from None
    found: dict[str, str] = {}
    for name, value in items:
        if name in found:
            raise invalid(name, "must be given once")
        found[name] = value
    return found


def read_list_query(query: dict[str, str], *, most: int, default: int) -> ListQuery:
    """The part of a list that `query` asks for. InvalidRequest with the parameter's name."""
    text = query.get("limit")
    limit = default
    if text is not None:
        is_number = text.isascii() and text.isdigit() and len(text) <= 9
        limit = int(text) if is_number else 0
        if not 1 <= limit <= most:
            raise invalid("limit", f"must be an integer from 1 to {most}")
    order = check_word(query.get("order", "desc"), "order", ("asc", "desc"))
    after = query.get("after")
    if after == "":
        raise invalid("after", "must not be empty")
    return ListQuery(after, limit, "asc" if order == "asc" else "desc")
