"""Interface of the Kubernetes API client: objects, informer caches and Secrets.

Fulfilled by `client`, `informer` and `secrets`, and by the fakes of the tests.
"""

from collections.abc import AsyncIterator, Callable, ItemsView, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from gateway_core.api.key import Secret

Object = dict[str, Any]

PAGE = 500
"""Objects in a page of a list, at most."""
FIRST_PAGE = 50
"""Objects in a page while it is not known how large they are; the largest have 200 KB each."""


class RecordError(Exception):
    """The record did not do what was asked.

    `status` and `message` are those of the API server's answer; 0 and empty without one.
    """

    def __init__(self, text: str = "", *, status: int = 0, message: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.message = message


class AlreadyExists(RecordError):
    """An object of that name is there."""


class Missing(RecordError):
    """No object of that name is there."""


class Outdated(RecordError):
    """The object has changed since it was read: drop the write, wait for the event."""


class Refused(RecordError):
    """The schema or an admission rule refuses the object; the text says which."""


class NotPermitted(Refused):
    """The Kubernetes API forbids the call: of a read, since RBAC lacks the right."""


class RecordUnavailable(RecordError):
    """Nothing was written: the API was not reached, or it refused for load."""


class RecordFull(RecordUnavailable):
    """Nothing was written: the record's database has no space. Reads and most deletes go on."""


class RecordOutcomeUnknown(RecordError):
    """The write was sent and not acknowledged: it may have happened."""


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list: its items, the list's resourceVersion, and where it goes on."""

    items: list[Object]
    resource_version: str
    next_token: str | None


@dataclass(frozen=True, slots=True)
class Change:
    """A watch event: `kind` is ADDED, MODIFIED, DELETED or BOOKMARK."""

    kind: str
    object: Object


class WatchExpired(RecordError):
    """The resourceVersion to watch from is compacted: list anew."""


class Records(Protocol):
    """Access to the objects of one namespace. `plural` names the kind.

    Every method raises RecordUnavailable where nothing was done, and methods that write raise
    RecordOutcomeUnknown where that is not known.
    """

    async def create(self, plural: str, obj: Mapping[str, Any]) -> Object:
        """Creates; atomic: of several creates of one name exactly one succeeds. AlreadyExists."""
        ...

    async def get(self, plural: str, name: str) -> Object:
        """The newest object, a consistent read. Missing."""
        ...

    async def list_page(
        self,
        plural: str,
        *,
        limit: int | None = None,
        token: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        metadata_only: bool = False,
        at_version: str = "",
    ) -> Page:
        """One page of a consistent list: at most `limit` objects, as many as suit their size.

        A page has some megabytes at most, so it may have fewer objects and a token all the same.
        WatchExpired when the token has aged out.

        With `at_version`, the resourceVersion of another list: what was there at that moment, of
        this kind as of that one (all kinds of the gateway share one sequence of versions).
        WatchExpired once that is minutes ago.
        """
        ...

    def watch(
        self, plural: str, *, resource_version: str, timeout_seconds: int, field_selector: str = ""
    ) -> AsyncIterator[Change]:
        """Changes after `resource_version`, with bookmarks; ends after the time-out.

        With a selector, what comes to be selected is ADDED, and what no longer is DELETED. Raises
        WatchExpired, RecordUnavailable.
        """
        ...

    async def patch_status(self, plural: str, obj: Object, status: Mapping[str, Any]) -> Object:
        """Merges `status`, if the object is still at `obj`'s resourceVersion. Outdated, Missing.

        Compare-and-set: never overwrites what the caller has not seen.
        """
        ...

    async def replace_status(self, plural: str, obj: Object, status: Mapping[str, Any]) -> Object:
        """Replaces the status, compare-and-set as above; `obj` is a whole object as it was read.

        What `status` lacks is removed, so a caller starts from the status that it has read.
        """
        ...

    async def patch(self, plural: str, obj: Object, patch: Mapping[str, Any]) -> Object:
        """Merges `patch` into all but the status, compare-and-set as above."""
        ...

    async def delete(
        self, plural: str, name: str, *, uid: str = "", version: str = ""
    ) -> Object | None:
        """Deletes; nothing happens if it is gone.

        The object as it stands where a finalizer keeps it, None where it is gone at once. With
        `uid` or `version` only that very object or version of it. Outdated.
        """
        ...

    async def read_size(self) -> int:
        """Bytes allocated for the record's database, of all that share it. Refused."""
        ...

    async def read_secret(self, name: str) -> dict[str, bytes]:
        """The decoded data of a Secret. Missing. Callers keep it out of logs and objects."""
        ...

    async def renew_lease(self, name: str, holder: str) -> None:
        """Writes the time of now into the Lease `name`, which is made if need be."""
        ...

    async def report_event(self, obj: Object, *, reason: str, message: str) -> None:
        """A Warning event on `obj`, for what an admin must act on; lost if the API is away."""
        ...


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


class Secrets(Protocol):
    """The Secrets of one namespace. Nobody logs their data, or puts it into another object.

    Every method raises the errors of `ports.records`: RecordUnavailable where nothing was done,
    RecordOutcomeUnknown where that is not known, NotPermitted where rights are lacking.
    """

    async def find(self, name: str) -> Secret | None:
        """The Secret; None where there is none."""
        ...

    async def write(self, secret: Secret) -> None:
        """Makes the Secret, or merges it into the version that was read; compare-and-set.

        Raises AlreadyExists where one was made meanwhile, Outdated or Missing where it has changed
        or gone, and Refused where it is immutable.
        """
        ...
