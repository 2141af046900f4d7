"""Keys and guardrails as objects: calls with an Idempotency-Key, removed objects, pages of lists.

A call that changes an object is noted on it in the same write, so the note exists exactly where the
change does, even if the process is killed. Only digests of the last calls of each object are kept.
A create needs no note: the object's name is derived from the Idempotency-Key (`api.ids`), and the
object carries the digest of its input. Contract §2.2, §9.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import orjson

from gateway_apiserver.access import Caller
from gateway_apiserver.surfaces.management import ROOT
from gateway_apiserver.surfaces.management.changes import record_change
from gateway_apiserver.surfaces.management.requests import ListQuery
from gateway_core.accounts.changes import Change, list_changes
from gateway_core.accounts.remains import archive_removed, read_removed
from gateway_core.api.errors import KeyReused, NotFound, Unavailable
from gateway_core.api.ids import (
    FINGERPRINT_ANNOTATION,
    REPLAYS_ANNOTATION,
    REQUEST_ID_ANNOTATION,
    IdMint,
    id_to_name,
)
from gateway_core.api.resource import Object
from gateway_core.api.times import format_time
from gateway_core.kube.clock import CLOCK
from gateway_core.kube.kinds import Kind
from gateway_core.kube.lists import Position, find_position
from gateway_core.kube.repository import Repository, unknown
from gateway_core.storage.objects import ObjectStore, StoreUnavailable
from gateway_core.tasks.validation import fingerprint

MOST_NOTES = 64
"""Calls that are noted on one object; the oldest are dropped first."""
_DIGEST_CHARACTERS = 32
_PARAMETER = re.compile(r"\{\w+\}")


@dataclass(frozen=True, slots=True)
class Intent:
    """A call with an Idempotency-Key: digests of its identity and of its input, and its id."""

    call: str
    input: str
    request_id: str


@dataclass(frozen=True, slots=True)
class Creation:
    """A create: the name of its object, and the object `found` that an equal call made before."""

    name: str
    annotations: dict[str, str]
    intent: Intent | None = None
    found: Object | None = None


class ManagedObjects:
    """Keys and guardrails of all accounts.

    Of removed ones the object store keeps what cursors and replays need. The operator deletes it
    after 30 days, and beyond a number for each account.
    """

    def __init__(self, repository: Repository, mint: IdMint, store: ObjectStore) -> None:
        self._repository = repository
        self._mint = mint
        self._store = store

    async def begin_creation(
        self, caller: Caller, key: str | None, kind: Kind, values: Mapping[str, Any]
    ) -> Creation:
        """Choose the name of the object that `values` ask for, and look for an earlier call's.

        Raises KeyReused or Unavailable.
        """
        annotations = {REQUEST_ID_ANNOTATION: caller.context.request_id}
        annotations |= record_change(None, caller.principal, "created")
        if key is None:
            wire_id = self._mint.mint_random(kind.prefix, caller.account)
            return Creation(id_to_name(wire_id), annotations)
        intent = make_intent(caller, key, values)
        path = _read_path(caller)
        name = id_to_name(self._mint.mint_keyed(kind.prefix, caller.account, "POST", path, key))
        found = await self._repository.look_up(kind, name)
        found = found or await self._find_removed(kind, caller.account, name)
        if found is not None:
            check_made(found, intent)
        annotations[FINGERPRINT_ANNOTATION] = intent.input
        return Creation(name, annotations, intent, found)

    async def read_page(
        self,
        kind: Kind,
        account: str,
        query: ListQuery,
        is_wanted: Callable[[Object], bool] = lambda _: True,
    ) -> tuple[list[Object], bool]:
        """Return the whole objects of a page; and whether there are more. NotFound, Unavailable."""
        known: dict[str, Object] = {}
        if query.after is not None:
            with suppress(NotFound):
                cursor = await self._repository.find(kind, account, query.after)
                known[cursor["metadata"]["name"]] = cursor
        return await self._repository.list_some(
            kind,
            account,
            after=await self.find_cursor(kind, account, query.after, known),
            limit=query.limit,
            order=query.order,
            is_wanted=is_wanted,
        )

    async def find_cursor(
        self, kind: Kind, account: str, wire_id: str | None, objects: Mapping[str, Object]
    ) -> Position | None:
        """Position of the object that a cursor names, removed or not (contract §3.4). NotFound."""
        if wire_id is None:
            return None
        name = self._repository.check_id(kind, account, wire_id)
        if name is None:
            raise unknown(kind)
        found = objects.get(name) or await self._find_removed(kind, account, name)
        if found is None:
            raise unknown(kind)
        return find_position(found)

    async def keep_removed(self, kind: Kind, account: str, obj: Object, by: str, text: str) -> None:
        """Store what is needed of an object before it is deleted, and by whom. Unavailable."""
        try:
            rows = [*list_changes(obj), Change(format_time(CLOCK.now()), by, text)]
            await archive_removed(self._store, kind.plural, account, obj, rows)
        except StoreUnavailable as error:
            raise _unavailable(kind) from error

    async def _find_removed(self, kind: Kind, account: str, name: str) -> Object | None:
        try:
            return await read_removed(self._store, kind.plural, account, name)
        except StoreUnavailable as error:
            raise _unavailable(kind) from error


def make_intent(caller: Caller, key: str, values: Mapping[str, Any]) -> Intent:
    """Return the intent of a POST of the validated body `values`, ids in the path included."""
    name = hashlib.sha256(f"{_PARAMETER.sub('*', _read_path(caller))}\0{key}".encode()).hexdigest()
    given = fingerprint(values)
    return Intent(name[:_DIGEST_CHARACTERS], given[:_DIGEST_CHARACTERS], caller.context.request_id)


def _read_path(caller: Caller) -> str:
    """Return the route's path below the root, with its parameters named."""
    return caller.path.removeprefix(ROOT + "/")


def check_made(obj: Object, intent: Intent) -> None:
    """Raise KeyReused if the object was made by a call with other input."""
    annotations = obj["metadata"].get("annotations") or {}
    if annotations.get(FINGERPRINT_ANNOTATION) != intent.input:
        raise KeyReused


def find_note(obj: Object, intent: Intent) -> str | None:
    """Return the request id of the call that has already changed the object, None for none.

    Raises KeyReused.
    """
    for call, given, request_id in _read_notes(obj):
        if call == intent.call:
            if given != intent.input:
                raise KeyReused
            return request_id
    return None


def check_others(objects: Iterable[Object], name: str, intent: Intent) -> None:
    """Raise KeyReused if the key stands for a change of another object than `name`."""
    for obj in objects:
        noted = any(call == intent.call for call, _, _ in _read_notes(obj))
        if noted and obj["metadata"]["name"] != name:
            raise KeyReused


def note(obj: Object, intent: Intent | None) -> dict[str, str]:
    """Annotations of the object's next version, in which the call is noted."""
    if intent is None:
        return {}
    notes = [*_read_notes(obj), (intent.call, intent.input, intent.request_id)][-MOST_NOTES:]
    return {REPLAYS_ANNOTATION: orjson.dumps(notes).decode()}


def drop_note(obj: Object, intent: Intent | None) -> dict[str, str]:
    """Annotations of the object's next version, in which the call is not noted."""
    if intent is None:
        return {}
    notes = [noted for noted in _read_notes(obj) if noted[0] != intent.call]
    return {REPLAYS_ANNOTATION: orjson.dumps(notes).decode()}


def _read_notes(obj: Object) -> list[tuple[str, str, str]]:
    text = (obj["metadata"].get("annotations") or {}).get(REPLAYS_ANNOTATION, "[]")
    try:
        return [(str(call), str(given), str(by)) for call, given, by in orjson.loads(text)]
    except (ValueError, TypeError):
        return []  # an admin has written something else there


def _unavailable(kind: Kind) -> Unavailable:
    title = kind.title.lower()
    return Unavailable(f"Removed {title}s cannot be looked up now.", retry_after=1)
