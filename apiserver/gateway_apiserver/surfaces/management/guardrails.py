"""`/guardrails`: limits that keys share are made, shown, changed and deleted (contract §9)."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from gateway_apiserver.responses import Response, to_json
from gateway_apiserver.routing import Call
from gateway_apiserver.surfaces.bodies import read_idempotency_key
from gateway_apiserver.surfaces.management.budgets import BudgetReader, view_unused
from gateway_apiserver.surfaces.management.replays import RemovedObjects, check_made, make_intent
from gateway_apiserver.surfaces.management.requests import (
    DeleteQuery,
    GuardrailCreate,
    GuardrailPatch,
    ListQuery,
)
from gateway_apiserver.surfaces.management.responses import (
    DeletedGuardrail,
    Guardrail,
    render_guardrail,
)
from gateway_apiserver.surfaces.management.specs import write_patch, write_spec
from gateway_apiserver.surfaces.validation import read_body, read_query
from gateway_core.api.errors import Conflict, NotFound, Unavailable
from gateway_core.api.guardrail import GUARDRAIL_PREFIX, GatewayGuardrail
from gateway_core.api.ids import (
    ACCOUNT_LABEL,
    FINGERPRINT_ANNOTATION,
    REQUEST_ID_ANNOTATION,
    SEQUENCE_ANNOTATION,
    UNCHECKED_ANNOTATION,
    IdMint,
    id_to_name,
    name_to_id,
)
from gateway_core.api.limits import subject_of_guardrail
from gateway_core.api.resource import Object, skeleton
from gateway_core.kube.lists import find_position, take_page, wrap_page
from gateway_core.kube.repository import GUARDRAILS, KEYS, Repository, unknown

_ATTEMPTS = 8


class GuardrailRoutes:
    """The handlers; their routes have authorized the caller."""

    def __init__(
        self,
        repository: Repository,
        removed: RemovedObjects,
        budgets: BudgetReader,
        mint: IdMint,
        most: int,
    ) -> None:
        self._repository = repository
        self._removed = removed
        self._budgets = budgets
        self._mint = mint
        self._most = most

    async def create(self, call: Call) -> Response:
        """A new guardrail; its name is the only one of the account.

        It is created first and then looked whether another had the name at that moment: of several
        made at once the first one stays. Until that is known it is marked, and nobody is told
        of it: one that a killed process has left is checked when its call is repeated.
        """
        body = await read_body(call, GuardrailCreate)
        idempotency_key = read_idempotency_key(call.headers)
        values = body.model_dump(exclude_none=True)
        spec = write_spec(values)
        annotations = {REQUEST_ID_ANNOTATION: call.context.request_id}
        wire_id, intent = self._mint.mint_random(GUARDRAIL_PREFIX, call.account), None
        if idempotency_key is not None:
            intent = make_intent(call, idempotency_key, values)
            annotations[FINGERPRINT_ANNOTATION] = intent.input
            wire_id = self._mint.mint_keyed(
                GUARDRAIL_PREFIX, call.account, "POST", "guardrails", idempotency_key
            )
            name = id_to_name(wire_id)
            found = await self._repository.look_up(GUARDRAILS, name)
            found = found or await self._removed.find(GUARDRAILS, call.account, name)
            if found is not None:
                check_made(found, intent)
                return await self._conclude(found, spec, replayed=True)
        listing = await self._repository.list_all(GUARDRAILS, call.account)
        _check_name(listing.objects.values(), spec["displayName"])
        if len(listing.objects) >= self._most:
            raise Conflict(
                f"The account has {len(listing.objects)} guardrails;"
                f" at most {self._most} are allowed."
            )
        annotations |= {SEQUENCE_ANNOTATION: listing.version, UNCHECKED_ANNOTATION: "true"}
        labels = {ACCOUNT_LABEL: call.account}
        head = skeleton(
            GatewayGuardrail, id_to_name(wire_id), labels=labels, annotations=annotations
        )
        obj = {**head, "spec": {"accountName": call.account, **spec}}
        stands, is_new = await self._repository.create(GUARDRAILS, obj)
        if not is_new and intent is not None:
            check_made(stands, intent)
        return await self._conclude(stands, spec, replayed=not is_new)

    async def _conclude(self, obj: Object, spec: Mapping[str, Any], *, replayed: bool) -> Response:
        """The answer to the call that has made `obj` of `spec`, which goes if its name is taken.

        A checked one stays, even if names have changed since. Raises Conflict.
        """
        if not _is_checked(obj):
            # what stood there may have been written since it was made: then it gives way to all
            is_first = await self._is_first(obj, now=replayed)
            if not is_first and not await self._repository.retract(GUARDRAILS, obj, _is_checked):
                raise _taken(spec["displayName"])
            if is_first and not await self._keep(obj):
                raise _taken(spec["displayName"])
        return to_json(_render_new(obj, spec), 201, replayed=replayed)

    async def _keep(self, obj: Object) -> bool:
        """Takes the mark off; False where the object was taken away meanwhile."""

        def decide(current: Object) -> Mapping[str, Any] | None:
            if _is_marked(current):
                return {"metadata": {"annotations": {UNCHECKED_ANNOTATION: None}}}
            return None

        account, wire_id = obj["spec"]["accountName"], name_to_id(obj["metadata"]["name"])
        try:
            await self._repository.change(GUARDRAILS, account, wire_id, decide)
        except NotFound:
            return False
        return True

    async def list_guardrails(self, call: Call) -> Response:
        """A page of the account's guardrails."""
        query = read_query(ListQuery, call.query)
        listing = await self._repository.list_all(GUARDRAILS, call.account)
        after = None
        if query.after is not None:
            after = find_position(await self._find_cursor(call, query.after, listing.objects))
        page, more = take_page(
            list(listing.objects.values()),
            find_position,
            after=after,
            limit=query.limit,
            order=query.order,
        )
        names = [obj["metadata"]["name"] for obj in page]
        whole = await self._repository.show_each(GUARDRAILS, call.account, names, lambda obj: obj)
        shown = await self._render_all(call.account, whole)
        return to_json(wrap_page([guardrail.model_dump() for guardrail in shown], more))

    async def show_guardrail(self, call: Call) -> Response:
        """One guardrail."""
        obj = await self._repository.find(GUARDRAILS, call.account, call.wire_id)
        return to_json(await self._render(obj))

    async def change(self, call: Call) -> Response:
        """A guardrail after a merge patch."""
        body = await read_body(call, GuardrailPatch)
        values = body.model_dump(exclude_unset=True)
        before = await self._repository.find(GUARDRAILS, call.account, call.wire_id)
        name = before["spec"]["displayName"]
        renamed = values.get("name", name) != name
        if renamed:
            listing = await self._repository.list_all(GUARDRAILS, call.account)
            _check_name(listing.objects.values(), values["name"])

        def decide(obj: Object) -> Mapping[str, Any] | None:
            patch = write_patch(obj["spec"], values)
            return {"spec": patch} if patch else None

        changed = await self._repository.change(GUARDRAILS, call.account, call.wire_id, decide)
        if renamed and not await self._is_first(changed):

            def give_back(obj: Object) -> Mapping[str, Any] | None:
                is_ours = obj["spec"]["displayName"] == values["name"]
                return {"spec": {"displayName": name}} if is_ours else None

            await self._repository.change(GUARDRAILS, call.account, call.wire_id, give_back)
            raise _taken(values["name"])
        return to_json(await self._render(changed))

    async def delete(self, call: Call) -> Response:
        """That the guardrail is gone; one that keys are under goes with `force` only."""
        force = read_query(DeleteQuery, call.query).force == "true"
        for _ in range(_ATTEMPTS):
            obj = await self._repository.find(GUARDRAILS, call.account, call.wire_id)
            (assigned,) = await self._count_keys(call.account, [obj])
            if assigned and not force:
                raise Conflict(
                    f"The guardrail holds for keys ({assigned}): take them out, or add ?force=true."
                )
            await self._removed.put(GUARDRAILS, call.account, obj)
            if await self._repository.remove(GUARDRAILS, obj):
                return to_json(DeletedGuardrail(id=call.wire_id))
        raise Unavailable("The guardrail is being changed by others.", retry_after=1)

    async def _find_cursor(self, call: Call, wire_id: str, objects: Mapping[str, Object]) -> Object:
        name = self._repository.check_id(GUARDRAILS, call.account, wire_id)
        if name is None:
            raise unknown(GUARDRAILS)
        found = objects.get(name) or await self._removed.find(GUARDRAILS, call.account, name)
        if found is None:
            raise unknown(GUARDRAILS)
        return found

    async def _is_first(self, obj: Object, *, now: bool = False) -> bool:
        """Whether its name was unique when this version was written, or is now."""
        account, meta = obj["spec"]["accountName"], obj["metadata"]
        version = "" if now else meta["resourceVersion"]
        then = await self._repository.list_all(GUARDRAILS, account, at_version=version)
        return not any(
            other["spec"]["displayName"] == obj["spec"]["displayName"]
            for name, other in then.objects.items()
            if name != meta["name"]
        )

    async def _render(self, obj: Object) -> Guardrail:
        return (await self._render_all(obj["spec"]["accountName"], [obj]))[0]

    async def _render_all(self, account: str, objects: Sequence[Object]) -> list[Guardrail]:
        subjects = {subject_of_guardrail(obj["metadata"]["name"]): obj for obj in objects}
        budgets = await self._budgets.read(account, subjects)
        counts = await self._count_keys(account, objects)
        return [
            render_guardrail(obj, assigned=count, budget=budgets[subject])
            for (subject, obj), count in zip(subjects.items(), counts, strict=True)
        ]

    async def _count_keys(self, account: str, objects: Sequence[Object]) -> list[int]:
        """How many keys each of the guardrails holds for; names of keys that are gone do not."""
        named = [set(obj["spec"].get("keyNames") or ()) for obj in objects]
        if not any(named):
            return [0 for _ in named]
        keys = await self._repository.list_all(KEYS, account, names_only=True)
        return [len(names & keys.objects.keys()) for names in named]


def _render_new(obj: Object, spec: Mapping[str, Any]) -> Guardrail:
    """The guardrail as it was made of `spec`."""
    meta = obj["metadata"]
    first = {
        "metadata": {"name": meta["name"], "creationTimestamp": meta["creationTimestamp"]},
        "spec": spec,
    }
    made = datetime.fromisoformat(meta["creationTimestamp"])
    return render_guardrail(first, assigned=0, budget=view_unused(spec, made))


def _is_marked(obj: Object) -> bool:
    return UNCHECKED_ANNOTATION in (obj["metadata"].get("annotations") or {})


def _is_checked(obj: Object) -> bool:
    """Whether a guardrail stays: its create was answered, or keys are assigned to it."""
    return not _is_marked(obj) or bool(obj["spec"].get("keyNames"))


def _check_name(objects: Any, name: str) -> None:
    if any(obj["spec"]["displayName"] == name for obj in objects):
        raise _taken(name)


def _taken(name: str) -> Conflict:
    return Conflict(f"A guardrail called {name} is there already.")
