"""`/guardrails/{id}/assignments`: the keys that a guardrail limits (contract §9).

They are one list on the guardrail, so all keys of a call are assigned or removed in one write.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gateway_apiserver.access import Caller
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
from gateway_apiserver.surfaces.management.requests import ListQuery
from gateway_apiserver.surfaces.management.responses import (
    Assignment,
    find_status,
)
from gateway_apiserver.surfaces.models import Page
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
from gateway_core.kube.lists import find_position, take_page
from gateway_core.kube.repository import Repository, unknown

Merge = Callable[[str, list[str], list[str], Iterable[Object]], list[str]]
"""A guardrail's next keys: of its name, its keys, those of the call, and all guardrails."""


class AssignmentService:
    """Lists, assigns and removes keys of a guardrail."""

    def __init__(self, repository: Repository, objects: ManagedObjects) -> None:
        self._repository = repository
        self._objects = objects

    async def list_page(
        self, account: str, guardrail_id: str, query: ListQuery
    ) -> Page[Assignment]:
        """Return a page of the guardrail's keys, by their creation."""
        guardrail = await self._repository.find(GUARDRAILS, account, guardrail_id)
        keys = (await self._repository.list_all(KEYS, account)).objects
        after = await self._objects.find_cursor(KEYS, account, query.after, keys)
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
            )
            for key in page
        ]
        return Page[Assignment].of(shown, has_more=more, cursor="key_id")

    async def assign(
        self, caller: Caller, key: str | None, guardrail_id: str, key_ids: list[str]
    ) -> bool:
        """Assign the keys to the guardrail, all or none; whether an earlier call did."""
        return await self._change(caller, key, guardrail_id, key_ids, _add)

    async def remove(
        self, caller: Caller, key: str | None, guardrail_id: str, key_ids: list[str]
    ) -> bool:
        """Remove the keys from the guardrail, all or none; whether an earlier call did."""
        return await self._change(caller, key, guardrail_id, key_ids, _remove)

    async def _change(
        self, caller: Caller, key: str | None, guardrail_id: str, key_ids: list[str], merge: Merge
    ) -> bool:
        guardrails = (await self._repository.list_all(GUARDRAILS, caller.account)).objects
        intent = None
        if key is not None:
            values = {"id": guardrail_id, "key_ids": sorted(key_ids)}
            intent = make_intent(caller, key, values)
            check_others(guardrails.values(), id_to_name(guardrail_id), intent)
            own = guardrails.get(id_to_name(guardrail_id))
            if own is not None and find_note(own, intent):
                return True
        names = await self._check_keys(caller.account, guardrail_id, key_ids)

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
                annotations |= record_change(obj, caller.principal, text)
            return {"metadata": {"annotations": annotations}, "spec": {"keyNames": merged}}

        changed = await self._repository.change(GUARDRAILS, caller.account, guardrail_id, decide)
        noted = None if intent is None else find_note(changed, intent)
        replayed = noted not in (None, caller.context.request_id)
        if merge is _add and not replayed:
            before = guardrails.get(changed["metadata"]["name"], changed)
            await self._check_room(caller.account, guardrail_id, changed, before, names, intent)
        return replayed

    async def _check_room(
        self,
        account: str,
        guardrail_id: str,
        changed: Object,
        before: Object,
        names: list[str],
        intent: Intent | None,
    ) -> None:
        """Remove the keys again if concurrent calls gave one of them its last place. Conflict.

        The state as of the write of `changed` decides: of calls that race for the last place, the
        first one gets it.
        """
        then = await self._repository.list_all(
            GUARDRAILS, account, at_version=changed["metadata"]["resourceVersion"]
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

            await self._repository.change(GUARDRAILS, account, guardrail_id, give_back)
            raise

    async def _check_keys(
        self, account: str, guardrail_id: str, wire_ids: Iterable[str]
    ) -> list[str]:
        """Return the keys' object names. NotFound if one is not the account's."""
        await self._repository.find(GUARDRAILS, account, guardrail_id)
        keys = (await self._repository.list_all(KEYS, account, names_only=True)).objects
        names = [self._repository.check_id(KEYS, account, wire_id) for wire_id in wire_ids]
        known = [name for name in names if name is not None and name in keys]
        if len(known) < len(names):
            raise unknown(KEYS, param="key_ids")
        return known


def _add(own: str, known: list[str], names: list[str], guardrails: Iterable[Object]) -> list[str]:
    """Return the keys of the guardrail `own` with more.

    Raises Conflict if it or a key then has too many.
    """
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
