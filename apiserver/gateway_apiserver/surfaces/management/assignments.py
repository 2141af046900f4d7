"""`/guardrails/{id}/assignments`: the keys that a guardrail limits (contract §9).

They are one list on the guardrail, so all keys of a call are assigned or removed in one write.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gateway_apiserver.endpoints import Call, Docs, RouteTable
from gateway_apiserver.surfaces.management import GOVERN, LABEL, ROOT
from gateway_apiserver.surfaces.management.changes import record_change
from gateway_apiserver.surfaces.management.objects import (
    Intent,
    ManagedObjects,
    check_others,
    drop_note,
    find_note,
    make_intent,
    note,
)
from gateway_apiserver.surfaces.management.requests import (
    KeyIds,
    ListQuery,
)
from gateway_apiserver.surfaces.management.responses import (
    Assigned,
    Assignment,
    Unassigned,
    find_status,
)
from gateway_apiserver.surfaces.models import Page
from gateway_apiserver.surfaces.validation import read_body, read_idempotency_key, read_query
from gateway_core.api.errors import Conflict
from gateway_core.api.guardrail import MOST_KEYS
from gateway_core.api.ids import (
    id_to_name,
    name_to_id,
)
from gateway_core.api.limits import MOST_GUARDRAILS
from gateway_core.api.resource import Object
from gateway_core.kube.clock import CLOCK
from gateway_core.kube.kinds import GUARDRAILS, KEYS
from gateway_core.kube.lists import find_position, take_page, wrap_page
from gateway_core.kube.repository import Repository, unknown
from gateway_web.responses import Response, to_json

Merge = Callable[[str, list[str], list[str], Iterable[Object]], list[str]]
"""A guardrail's next keys: of its name, its keys, those of the call, and all guardrails."""


class AssignmentRoutes:
    """List, assign and remove keys of a guardrail."""

    def __init__(self, repository: Repository, objects: ManagedObjects) -> None:
        self._repository = repository
        self._objects = objects

    def add_to(self, table: RouteTable) -> None:
        """Add the routes."""
        path, title = (
            ROOT + "/guardrails/{guardrail_id}/assignments",
            "Keys that a guardrail holds for",
        )
        docs = Docs("listAssignments", title, Page[Assignment], query=ListQuery)
        table.add("GET", path, self.list_page, LABEL, GOVERN, docs)
        title = "Put keys under a guardrail"
        docs = Docs("assignKeys", title, Assigned, body=KeyIds, makes="change")
        table.add("POST", path, self.assign, LABEL, GOVERN, docs)
        title = "Take keys out of a guardrail"
        docs = Docs("unassignKeys", title, Unassigned, body=KeyIds, makes="change")
        table.add("POST", f"{path}/remove", self.remove, LABEL, GOVERN, docs)

    async def list_page(self, call: Call) -> Response:
        """A page of the guardrail's keys, by their creation."""
        query = read_query(ListQuery, call.query)
        guardrail = await self._repository.find(GUARDRAILS, call.account, call.wire_id)
        keys = (await self._repository.list_all(KEYS, call.account)).objects
        after = await self._objects.find_cursor(KEYS, call.account, query.after, keys)
        named = [keys[name] for name in guardrail["spec"].get("keyNames") or () if name in keys]
        page, more = take_page(
            named, find_position, after=after, limit=query.limit, order=query.order
        )
        now = CLOCK.now()
        shown = [
            Assignment(
                key_id=name_to_id(key["metadata"]["name"]),
                key_name=key["spec"]["displayName"],
                key_status=find_status(key["spec"], now),
            ).model_dump()
            for key in page
        ]
        return to_json(wrap_page(shown, more, "key_id"))

    async def assign(self, call: Call) -> Response:
        """Assign the keys to the guardrail, all or none."""
        given, replayed = await self._change(call, _add)
        return to_json(Assigned(assigned_count=given), replayed=replayed)

    async def remove(self, call: Call) -> Response:
        """Remove the keys from the guardrail, all or none."""
        given, replayed = await self._change(call, _remove)
        return to_json(Unassigned(unassigned_count=given), replayed=replayed)

    async def _change(self, call: Call, merge: Merge) -> tuple[int, bool]:
        body = await read_body(call, KeyIds)
        idempotency_key = read_idempotency_key(call.headers)
        guardrails = (await self._repository.list_all(GUARDRAILS, call.account)).objects
        intent = None
        if idempotency_key is not None:
            values = {"id": call.wire_id, "key_ids": sorted(body.key_ids)}
            intent = make_intent(call, idempotency_key, values)
            check_others(guardrails.values(), id_to_name(call.wire_id), intent)
            own = guardrails.get(id_to_name(call.wire_id))
            if own is not None and find_note(own, intent):
                return len(body.key_ids), True
        names = await self._check_keys(call, body.key_ids)

        def decide(obj: Object) -> Mapping[str, Any] | None:
            if intent is not None and find_note(obj, intent):
                return None
            known = obj["spec"].get("keyNames") or []
            merged = merge(obj["metadata"]["name"], known, names, guardrails.values())
            if merged == known and intent is None:
                return None
            annotations = note(obj, intent)
            if merged != known:
                word = "put under it" if merge is _add else "taken out"
                text = f"{', '.join(map(name_to_id, names[:4]))} {word}"
                annotations |= record_change(obj, call.caller, text)
            return {"metadata": {"annotations": annotations}, "spec": {"keyNames": merged}}

        changed = await self._repository.change(GUARDRAILS, call.account, call.wire_id, decide)
        noted = None if intent is None else find_note(changed, intent)
        replayed = noted not in (None, call.context.request_id)
        if merge is _add and not replayed:
            before = guardrails.get(changed["metadata"]["name"], changed)
            await self._check_room(call, changed, before, names, intent)
        return len(names), replayed

    async def _check_room(
        self, call: Call, changed: Object, before: Object, names: list[str], intent: Intent | None
    ) -> None:
        """Remove the keys again if concurrent calls gave one of them its last place. Conflict.

        The state as of the write of `changed` decides: of calls that race for the last place, the
        first one gets it.
        """
        then = await self._repository.list_all(
            GUARDRAILS, call.account, at_version=changed["metadata"]["resourceVersion"]
        )
        own = changed["metadata"]["name"]
        try:
            _add(own, [], names, then.objects.values())
        except Conflict:
            known = set(before["spec"].get("keyNames") or ())
            added = [name for name in names if name not in known]

            def give_back(obj: Object) -> Mapping[str, Any] | None:
                now = obj["spec"].get("keyNames") or []
                left = [name for name in now if name not in added]
                noted = intent is not None and find_note(obj, intent)
                if left == now and not noted:
                    return None
                annotations = drop_note(obj, intent)
                return {"metadata": {"annotations": annotations}, "spec": {"keyNames": left}}

            await self._repository.change(GUARDRAILS, call.account, call.wire_id, give_back)
            raise

    async def _check_keys(self, call: Call, wire_ids: Iterable[str]) -> list[str]:
        """The keys' object names. NotFound if one is not the account's."""
        await self._repository.find(GUARDRAILS, call.account, call.wire_id)
        keys = (await self._repository.list_all(KEYS, call.account, names_only=True)).objects
        names = [self._repository.check_id(KEYS, call.account, wire_id) for wire_id in wire_ids]
        known = [name for name in names if name is not None and name in keys]
        if len(known) < len(names):
            raise unknown(KEYS)
        return known


def _add(own: str, known: list[str], names: list[str], guardrails: Iterable[Object]) -> list[str]:
    """The keys of the guardrail `own` with more. Conflict if it or a key then has too many."""
    for name in names:
        others = sum(
            name in (guardrail["spec"].get("keyNames") or ())
            for guardrail in guardrails
            if guardrail["metadata"]["name"] != own
        )
        if others >= MOST_GUARDRAILS:
            raise Conflict(
                f"Key {name_to_id(name)} has {MOST_GUARDRAILS} guardrails, which is the most."
            )
    merged = list(dict.fromkeys([*known, *names]))
    if len(merged) > MOST_KEYS:
        raise Conflict(f"A guardrail holds for at most {MOST_KEYS} keys.")
    return merged


def _remove(_: str, known: list[str], names: list[str], __: Iterable[Object]) -> list[str]:
    return [name for name in known if name not in names]
