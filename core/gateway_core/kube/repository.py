"""Repository of an account's keys, guardrails and Batches in the Kubernetes API.

Everything is read from the Kubernetes API, consistently, and written with compare-and-set: another
replica's last write is never overwritten and never missed. What was written is put into this
replica's tables at once.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from gateway_core.api.errors import Internal, NotFound, OutcomeUnknown, Unavailable
from gateway_core.api.ids import (
    IdMint,
    Ownership,
    id_to_name,
)
from gateway_core.api.resource import Object
from gateway_core.fair_semaphore import FairSemaphore
from gateway_core.kube.client import KubernetesClient, Page
from gateway_core.kube.errors import (
    AlreadyExists,
    KubernetesUnavailable,
    ObjectNotFound,
    RequestRejected,
    VersionExpired,
    WriteConflict,
    WriteOutcomeUnknown,
)
from gateway_core.kube.informer import Cache
from gateway_core.kube.kinds import Kind
from gateway_core.kube.lists import Order, Position, find_position, list_pages, take_page
from gateway_core.kube.retries import GIVE_UP_SECONDS, attempts

READS_AT_ONCE = 16
"""Whole objects that are read for lists at a time: one may have hundreds of KiB."""
_MOST_LISTS = 3
MOST_LISTS = 4
_log = structlog.get_logger(__name__)

Shown = TypeVar("Shown")
T = TypeVar("T")
Decide = Callable[[Object], Mapping[str, Any] | None]
"""The merge patch that an object needs, None for none; asked again where it has changed since."""


@dataclass(frozen=True, slots=True)
class Listing:
    """All of one kind by name, and the version of the record that shows them."""

    objects: dict[str, Object]
    version: str


class ListLimiter(FairSemaphore):
    """Bounds concurrent full-list requests to the Kubernetes API: one for each account."""

    def __init__(self, total: int = MOST_LISTS) -> None:
        super().__init__(total, alone=total, per_holder=1)


class Repository:
    """What all accounts hold; whose it is is asked at each call."""

    def __init__(
        self,
        kube: KubernetesClient,
        mint: IdMint,
        tables: Mapping[str, Cache[Any]],
        lists: ListLimiter,
    ) -> None:
        self._kube = kube
        self._mint = mint
        self._tables = tables
        self._lists = lists
        self._reads = asyncio.Semaphore(READS_AT_ONCE)

    async def find(self, kind: Kind, account: str, wire_id: str) -> Object:
        """Return the account's object of this id.

        Raises NotFound, the same for one of another account, and Unavailable.
        """
        name = self.check_id(kind, account, wire_id)
        if name is None:
            raise unknown(kind)
        named = self._mint.check(kind.prefix, account, wire_id) is Ownership.NAMED
        obj = await (self._find_named(kind, account, name) if named else self.look_up(kind, name))
        if obj is None or not _is_held(kind, account, obj):
            raise unknown(kind)
        return obj

    def check_id(self, kind: Kind, account: str, wire_id: str) -> str | None:
        """Return the object's name; None where the id cannot be the account's."""
        rest = wire_id.removeprefix(kind.prefix + "_")
        shaped = rest != wire_id and len(rest) <= 58 and rest.replace("-", "a").isalnum()
        if not (shaped and rest.isascii() and rest == rest.lower() and rest[-1] != "-"):
            return None
        if self._mint.check(kind.prefix, account, wire_id) is Ownership.FOREIGN:
            return None
        return id_to_name(wire_id)

    async def look_up(self, kind: Kind, name: str) -> Object | None:
        """Return the object of this name, whosever it is. Unavailable."""
        async with _reading(kind):
            try:
                return await self._kube.get(kind.plural, name)
            except ObjectNotFound:
                return None

    async def _find_named(self, kind: Kind, account: str, name: str) -> Object | None:
        """Return the account's object that an admin named; Unavailable."""
        # the bytes of another account's object would make its 404 measurably slower than others
        fields = f"{'.'.join(kind.owner)}={account},metadata.name={name}"
        async with _reading(kind):
            page = await self._kube.list_page(kind.plural, field_selector=fields)
            return page.items[0] if page.items else None

    async def show_each(
        self, kind: Kind, account: str, names: Iterable[str], render: Callable[[Object], Shown]
    ) -> list[Shown]:
        """Return what `render` makes of each that is still there, in their order. Unavailable.

        Of the objects themselves only a few are held at a time, in all calls together.
        """

        async def show(name: str) -> Shown | None:
            async with self._reads:
                obj = await self.look_up(kind, name)
                return None if obj is None else render(obj)

        async with _reading(kind), self._lists.take(account):
            shown = await asyncio.gather(*map(show, names))
        return [each for each in shown if each is not None]

    async def list_all(
        self, kind: Kind, account: str, *, names_only: bool = False, at_version: str = ""
    ) -> Listing:
        """Return all that the account has of a kind, now or as of a version. Unavailable.

        Of each object its metadata and what of its spec the kind has `listed`; with `names_only`
        its metadata alone.
        """
        async with _reading(kind), self._lists.take(account):
            for _ in range(_MOST_LISTS):
                try:
                    return await self._read_pages(kind, account, names_only, at_version)
                except VersionExpired:
                    continue
            raise KubernetesUnavailable(f"{kind.plural} cannot be listed in time")

    async def list_names(
        self, kind: Kind, account: str, *, after: Position | None, limit: int, order: Order
    ) -> tuple[list[str], bool]:
        """Return names of the account's objects after a position; and whether there are more.

        Raises Unavailable.

        Objects whose deletion has begun are left out. Memory: one page of metadata and `limit`
        positions, however many objects there are.
        """

        def read(obj: Object) -> Position | None:
            return None if obj["metadata"].get("deletionTimestamp") else find_position(obj)

        listing = self._list_page(
            kind, account, read, lambda each: each, True, after=after, limit=limit, order=order
        )
        found, more = await listing
        return [name for _, _, name in found], more

    async def list_some(
        self,
        kind: Kind,
        account: str,
        *,
        after: Position | None,
        limit: int,
        order: Order,
        is_wanted: Callable[[Object], bool],
    ) -> tuple[list[Object], bool]:
        """Return the account's whole objects after a position; and whether there are more.

        Raises Unavailable.

        Memory: one page and `limit` objects, so only for kinds whose objects are small.
        """

        def read(obj: Object) -> Object | None:
            return obj if is_wanted(obj) and not _is_gone(kind, obj) else None

        return await self._list_page(
            kind, account, read, find_position, False, after=after, limit=limit, order=order
        )

    async def _list_page(
        self,
        kind: Kind,
        account: str,
        read: Callable[[Object], T | None],
        position: Callable[[T], Position],
        names_only: bool,
        **page: Any,
    ) -> tuple[list[T], bool]:
        """Return what `read` makes of the objects, of those the `page` of `take_page`.

        Raises Unavailable.
        """
        async with _reading(kind), self._lists.take(account):
            for _ in range(_MOST_LISTS):
                found: list[T] = []
                more = False
                try:
                    async for listed in self._walk(kind, account, names_only=names_only):
                        found += [made for obj in listed.items if (made := read(obj)) is not None]
                        found, beyond = take_page(found, position, **page)
                        more = more or beyond
                except VersionExpired:
                    continue
                return found, more
            raise KubernetesUnavailable(f"{kind.plural} cannot be listed in time")

    async def read_version(self, kind: Kind) -> str:
        """Return the version of the record now. Unavailable."""
        async with _reading(kind):
            page = await self._kube.list_page(kind.plural, limit=1, metadata_only=True)
            return page.resource_version

    async def create(self, kind: Kind, obj: Object) -> tuple[Object, bool]:
        """Create `obj`; return what stands under its name, and whether this call has made it.

        Raises OutcomeUnknown where it was sent and not acknowledged within 10 s, Unavailable.
        """
        async with writing(kind, obj["metadata"]["name"]):
            stands, is_new = await self._kube.create_or_get(kind.plural, obj)
        self._show(kind, stands)
        return stands, is_new

    async def change(self, kind: Kind, account: str, wire_id: str, decide: Decide) -> Object:
        """Changes the account's object as `decide` says; as it stands then.

        `decide` may raise. Where the answer to a write is lost it is asked again, and so must know
        its own change. Raises as `find` and `create` do.
        """

        async def read() -> Object:
            return await self.find(kind, account, wire_id)

        async with writing(kind, wire_id):
            changed = await self._kube.update(kind.plural, read, decide)
        self._show(kind, changed)
        return changed

    async def remove(self, kind: Kind, obj: Object) -> bool:
        """Delete this version of the object; return False where it has changed. Unavailable."""
        meta = obj["metadata"]
        async with _reading(kind):
            try:
                left = await self._kube.delete(
                    kind.plural, meta["name"], uid=meta["uid"], version=meta["resourceVersion"]
                )
            except WriteConflict:
                return False
        if left is not None:
            self._show(kind, left)
        elif (table := self._tables.get(kind.plural)) is not None:
            table.remove(obj)
        return True

    async def retract(self, kind: Kind, obj: Object, is_kept: Callable[[Object], bool]) -> bool:
        """Delete an object that was just made, in its current version; returns whether it is kept.

        `is_kept` is asked of each version before it is deleted. Unavailable.
        """
        meta = obj["metadata"]
        async for _ in attempts():
            current = await self.look_up(kind, meta["name"])
            if current is None or current["metadata"]["uid"] != meta["uid"]:
                return False
            if is_kept(current):
                return True
            if await self.remove(kind, current):
                return False
        raise _conflict(kind)

    def _show(self, kind: Kind, obj: Object) -> None:
        if (table := self._tables.get(kind.plural)) is not None:
            table.upsert(obj)

    async def _read_pages(
        self, kind: Kind, account: str, names_only: bool, at_version: str
    ) -> Listing:
        found: dict[str, Object] = {}
        version = ""
        async for page in self._walk(kind, account, names_only, at_version):
            version = version or page.resource_version
            present = (obj for obj in page.items if not _is_gone(kind, obj))
            found |= {obj["metadata"]["name"]: _shorten(kind, obj) for obj in present}
        return Listing(found, version)

    def _walk(
        self, kind: Kind, account: str, names_only: bool, at_version: str = ""
    ) -> AsyncIterator[Page]:
        """Return the pages of one list of all that the account has of a kind."""
        return list_pages(
            self._kube,
            kind.plural,
            field_selector=f"{'.'.join(kind.owner)}={account}{kind.selector}",
            metadata_only=names_only,
            at_version=at_version,
        )


def _shorten(kind: Kind, obj: Object) -> Object:
    """Return the object as lists keep it."""
    for entry in obj["metadata"].get("managedFields") or ():
        entry.pop("fieldsV1", None)
    if kind.listed is None or "spec" not in obj:
        return obj
    spec = {name: value for name, value in obj["spec"].items() if name in kind.listed}
    return {"metadata": obj["metadata"], "spec": spec}


def unknown(kind: Kind, *, param: str | None = None) -> NotFound:
    """Return the only 404 for unknown and foreign ids (contract §0.5)."""
    return NotFound(f"{kind.title} not found.", param=param)


@asynccontextmanager
async def _reading(kind: Kind) -> AsyncIterator[None]:
    """Raise Unavailable if the Kubernetes API does not answer within GIVE_UP_SECONDS."""
    try:
        async with asyncio.timeout(GIVE_UP_SECONDS):
            yield
    except (KubernetesUnavailable, WriteOutcomeUnknown, TimeoutError) as error:
        raise _unavailable(kind) from error


@asynccontextmanager
async def writing(kind: Kind, name: str) -> AsyncIterator[None]:
    """Raise the GatewayError for an error of a write to the Kubernetes API."""
    try:
        yield
    except WriteOutcomeUnknown as error:
        raise OutcomeUnknown(
            "The change was not acknowledged in time; it may have been made."
        ) from error
    except (WriteConflict, AlreadyExists, ObjectNotFound) as error:
        raise _conflict(kind) from error
    except KubernetesUnavailable as error:
        raise _unavailable(kind) from error
    except RequestRejected as error:
        _log.error("an object was rejected", object=name, error=str(error))
        raise Internal(f"The Kubernetes API refuses {name}.") from error


def _is_gone(kind: Kind, obj: Object) -> bool:
    return kind.ends_at_once and "deletionTimestamp" in obj["metadata"]


def _is_held(kind: Kind, account: str, obj: Object) -> bool:
    if _is_gone(kind, obj):
        return False
    governed = kind.key_class in (None, obj["spec"].get("class", "Standard"))
    owner: Any = obj
    for part in kind.owner:
        owner = owner[part]
    return governed and bool(owner == account)


def _unavailable(kind: Kind) -> Unavailable:
    title = kind.plural_title or f"{kind.title}s"
    return Unavailable(f"{title} cannot be read or written now.", retry_after=1)


def _conflict(kind: Kind) -> Unavailable:
    return Unavailable(f"The {kind.title.lower()} is being changed by others.", retry_after=1)
