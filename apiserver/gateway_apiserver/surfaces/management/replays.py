"""Idempotency-Key on calls that change what is there: noted on the object in the same write.

So the note exists exactly where the change does, even if a process is killed. Only digests of the
last calls of each object are kept. Creates need no note: the object's name is derived from the key
(`api.ids`), and the object carries the digest of its input. Contract §2.2, §9.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from gateway_apiserver.routing import Call
from gateway_core.api.errors import KeyReused, Unavailable
from gateway_core.api.ids import FINGERPRINT_ANNOTATION, REPLAYS_ANNOTATION
from gateway_core.api.resource import Object
from gateway_core.kube.repository import Kind
from gateway_core.storage.objects import ObjectStore, StoreUnavailable
from gateway_core.tasks.archive import archive_removed, read_removed
from gateway_core.tasks.validation import fingerprint

MOST_NOTES = 64
"""Calls that are noted on one object; the oldest go first."""
ROOT = "/api/v1/management"
_DIGEST_CHARACTERS = 32
_PARAMETER = re.compile(r"\{\w+\}")


@dataclass(frozen=True, slots=True)
class Intent:
    """A call with an Idempotency-Key: which it is and what it asks for, as digests; and by whom."""

    call: str
    input: str
    request_id: str


def make_intent(call: Call, key: str, values: Mapping[str, Any]) -> Intent:
    """The intent of a POST of the validated body `values`, ids in the path included."""
    path = (call.context.template or "").removeprefix(ROOT + "/")
    name = hashlib.sha256(f"{_PARAMETER.sub('*', path)}\0{key}".encode()).hexdigest()
    given = fingerprint(values)
    return Intent(name[:_DIGEST_CHARACTERS], given[:_DIGEST_CHARACTERS], call.context.request_id)


def check_made(obj: Object, intent: Intent) -> None:
    """Raises KeyReused where the object was made by a call with other input."""
    annotations = obj["metadata"].get("annotations") or {}
    if annotations.get(FINGERPRINT_ANNOTATION) != intent.input:
        raise KeyReused


def find_note(obj: Object, intent: Intent) -> str | None:
    """The request id of the call that has changed the object already, if one has. KeyReused."""
    for call, given, request_id in _read_notes(obj):
        if call == intent.call:
            if given != intent.input:
                raise KeyReused
            return request_id
    return None


def check_others(objects: Iterable[Object], name: str, intent: Intent) -> None:
    """Raises KeyReused where the key stands for a change of another object than `name`."""
    for obj in objects:
        noted = any(call == intent.call for call, _, _ in _read_notes(obj))
        if noted and obj["metadata"]["name"] != name:
            raise KeyReused


def note(obj: Object, intent: Intent | None) -> dict[str, str]:
    """The annotations of the object's next version, in which the call is noted."""
    if intent is None:
        return {}
    notes = [*_read_notes(obj), (intent.call, intent.input, intent.request_id)][-MOST_NOTES:]
    return {REPLAYS_ANNOTATION: orjson.dumps(notes).decode()}


def drop_note(obj: Object, intent: Intent | None) -> dict[str, str]:
    """The annotations of the object's next version, in which the call is noted no more."""
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


class RemovedObjects:
    """Removed keys and guardrails, as far as cursors and replays need them.

    The operator deletes what is left of them after 30 days, and of each account beyond a number.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def put(self, kind: Kind, account: str, obj: Object) -> None:
        """Keeps what is needed of the object, before it goes. Unavailable."""
        try:
            await archive_removed(self._store, kind.plural, account, obj)
        except StoreUnavailable as error:
            raise _unavailable(kind) from error

    async def find(self, kind: Kind, account: str, name: str) -> Object | None:
        """What is left of an object of the account; None if it was not removed. Unavailable."""
        try:
            return await read_removed(self._store, kind.plural, account, name)
        except StoreUnavailable as error:
            raise _unavailable(kind) from error


def _unavailable(kind: Kind) -> Unavailable:
    title = kind.title.lower()
    return Unavailable(f"Removed {title}s cannot be looked up now.", retry_after=1)
