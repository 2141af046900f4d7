"""Complete lists of objects, and lists in pages with cursors (contract §3.4, §9)."""

import operator
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from gateway_core.api.ids import CREATED_ANNOTATION, SEQUENCE_ANNOTATION
from gateway_core.api.resource import Object
from gateway_core.kube.client import KubernetesClient, Page


async def list_pages(kube: KubernetesClient, plural: str, **selectors: Any) -> AsyncIterator[Page]:
    """Yield all pages of a list; `selectors` are those of `KubernetesClient.list_page`.

    VersionExpired where the caller takes minutes for a page.
    """
    token = None
    while True:
        page = await kube.list_page(plural, token=token, **selectors)
        yield page
        token = page.next_token
        if token is None:
            return


async def list_all(
    kube: KubernetesClient,
    plural: str,
    *,
    shorten: Callable[[Object], Object] = lambda obj: obj,
    after_page: Callable[[], Awaitable[None]] | None = None,
    **selectors: Any,
) -> tuple[list[Object], str]:
    """Return all objects, each as `shorten` keeps it, and the resourceVersion of the list.

    With `at_version` the objects of that version: several kinds can be read as of one moment,
    since all kinds of the gateway share the revisions of one etcd. VersionExpired.
    """
    found: list[Object] = []
    version = ""
    async for page in list_pages(kube, plural, **selectors):
        if after_page is not None:
            await after_page()
        version = version or page.resource_version
        found += map(shorten, page.items)
    return found, selectors.get("at_version") or version


_NO_DIGITS = re.compile("[^0-9]")

T = TypeVar("T")
Order = Literal["asc", "desc"]
Position = tuple[str, int, str]
"""A place in the order of creation: the second, a number within it, the name.

The second is the API server's. The number is the version of the record before the creation: of two
made one after the other, the later has seen a newer one, whichever replica made it. A task, which
is made without a read, has the microsecond of its replica's clock.
"""


def find_position(obj: Mapping[str, Any]) -> Position:
    """Where an object stands; it never moves."""
    meta = obj["metadata"]
    annotations = meta.get("annotations") or {}
    text = annotations.get(SEQUENCE_ANNOTATION) or _read_moment(annotations)
    # an admin may have written any text there
    is_number = text.isascii() and text.isdigit() and len(text) <= 20
    return meta["creationTimestamp"], int(text) if is_number else 0, meta["name"]


def _read_moment(annotations: Mapping[str, str]) -> str:
    """Return the digits of the time of creation, which are ordered as it is."""
    return _NO_DIGITS.sub("", annotations.get(CREATED_ANNOTATION, ""))


def take_page(
    items: Sequence[T],
    position: Callable[[T], Any],
    *,
    after: Any | None,
    limit: int,
    order: Order,
) -> tuple[list[T], bool]:
    """Return the items after a position in that order, at most `limit`.

    Also return whether there are more.
    """
    ordered = sorted(items, key=position, reverse=order == "desc")
    if after is not None:
        is_beyond = operator.gt if order == "asc" else operator.lt
        ordered = [item for item in ordered if is_beyond(position(item), after)]
    return ordered[:limit], len(ordered) > limit
