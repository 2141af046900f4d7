"""`/guardrails`: limits that keys share are created, shown, changed and deleted (contract §9)."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from gateway_apiserver.access import Caller
from gateway_apiserver.surfaces.management.changes import name_caller, record_change
from gateway_apiserver.surfaces.management.objects import (
    ManagedObjects,
    check_made,
)
from gateway_apiserver.surfaces.management.requests import (
    GuardrailCreate,
    GuardrailPatch,
    ListQuery,
    write_patch,
    write_spec,
)
from gateway_apiserver.surfaces.management.responses import (
    BudgetReader,
    DeletedGuardrail,
    Guardrail,
    render_guardrail,
    view_unused,
)
from gateway_apiserver.surfaces.models import Page
from gateway_core.accounts.changes import note_ending
from gateway_core.api.errors import Conflict, NotFound, Unavailable
from gateway_core.api.guardrail import GatewayGuardrail
from gateway_core.api.ids import (
    ACCOUNT_LABEL,
    REMAINS_FINALIZER,
    SEQUENCE_ANNOTATION,
    UNCHECKED_ANNOTATION,
    name_to_id,
)
from gateway_core.api.limits import subject_of_guardrail
from gateway_core.api.resource import Object, skeleton
from gateway_core.kube.kinds import GUARDRAILS, KEYS
from gateway_core.kube.repository import Repository

_ATTEMPTS = 8


class GuardrailService:
    """Creates, lists, shows, changes and deletes guardrails."""

    def __init__(
        self,
        repository: Repository,
        objects: ManagedObjects,
        budgets: BudgetReader,
        most: int,
    ) -> None:
        self._repository = repository
        self._objects = objects
        self._budgets = budgets
        self._most = most

    async def create(
        self, caller: Caller, key: str | None, body: GuardrailCreate
    ) -> tuple[Guardrail, bool]:
        """Create a guardrail whose name is unique in the account; whether an earlier call did.

        It is created first, and kept if no other had the name at that moment: of concurrent creates
        the first one stays. Until that is known it is marked and not shown to clients; if the
        process is killed in between, a repetition of the call checks it.
        """
        values = body.model_dump(exclude_none=True)
        spec = write_spec(values)
        creation = await self._objects.begin_creation(caller, key, GUARDRAILS, values)
        if creation.found is not None:
            return await self._conclude(creation.found, spec, replayed=True)
        listing = await self._repository.list_all(GUARDRAILS, caller.account)
        _check_name(listing.objects.values(), spec["displayName"])
        if len(listing.objects) >= self._most:
            raise Conflict(
                f"The account has {len(listing.objects)} guardrails;"
                f" at most {self._most} are allowed."
            )
        annotations = {**creation.annotations, SEQUENCE_ANNOTATION: listing.version}
        annotations[UNCHECKED_ANNOTATION] = "true"
        labels = {ACCOUNT_LABEL: caller.account}
        head = skeleton(GatewayGuardrail, creation.name, labels=labels, annotations=annotations)
        obj = {**head, "spec": {"accountName": caller.account, **spec}}
        stands, is_new = await self._repository.create(GUARDRAILS, obj)
        if not is_new and creation.intent is not None:
            check_made(stands, creation.intent)
        return await self._conclude(stands, spec, replayed=not is_new)

    async def list_page(self, account: str, query: ListQuery) -> Page[Guardrail]:
        """Return a page of the account's guardrails."""
        page, more = await self._objects.read_page(GUARDRAILS, account, query)
        return Page[Guardrail].of(await self._render_all(account, page), has_more=more)

    async def show(self, account: str, guardrail_id: str) -> Guardrail:
        """Return one guardrail."""
        return await self._render(await self._repository.find(GUARDRAILS, account, guardrail_id))

    async def change(self, caller: Caller, guardrail_id: str, body: GuardrailPatch) -> Guardrail:
        """Apply a merge patch to a guardrail."""
        values = body.model_dump(exclude_unset=True)
        before = await self._repository.find(GUARDRAILS, caller.account, guardrail_id)
        name = before["spec"]["displayName"]
        renamed = values.get("name", name) != name
        if renamed:
            listing = await self._repository.list_all(GUARDRAILS, caller.account)
            _check_name(listing.objects.values(), values["name"])

        def decide(obj: Object) -> Mapping[str, Any] | None:
            patch = write_patch(obj["spec"], values)
            if not patch:
                return None
            changes = record_change(obj, caller.principal, f"changed {', '.join(patch)}")
            return {"metadata": {"annotations": changes}, "spec": patch}

        changed = await self._repository.change(GUARDRAILS, caller.account, guardrail_id, decide)
        if renamed and not await self._is_first(changed):

            def give_back(obj: Object) -> Mapping[str, Any] | None:
                is_ours = obj["spec"]["displayName"] == values["name"]
                return {"spec": {"displayName": name}} if is_ours else None

            await self._repository.change(GUARDRAILS, caller.account, guardrail_id, give_back)
            raise _taken(values["name"])
        return await self._render(changed)

    async def delete(self, caller: Caller, guardrail_id: str, *, force: bool) -> DeletedGuardrail:
        """Delete a guardrail; one with assigned keys only with `force`."""
        by, text = name_caller(caller.principal), "deleted"

        def note_end(_: Object) -> Mapping[str, Any]:
            return {"metadata": {"annotations": note_ending(by, text)}}

        for _ in range(_ATTEMPTS):
            obj = await self._repository.find(GUARDRAILS, caller.account, guardrail_id)
            (assigned,) = await self._count_keys(caller.account, [obj])
            if assigned and not force:
                raise Conflict(
                    f"The guardrail holds for keys ({assigned}): take them out, or add ?force=true."
                )
            noted = await self._repository.change(
                GUARDRAILS, caller.account, guardrail_id, note_end
            )
            if noted["spec"].get("keyNames") != obj["spec"].get("keyNames"):
                continue
            # first, so that replays and cursors never miss it
            await self._objects.keep_removed(GUARDRAILS, caller.account, noted, by, text)
            if await self._repository.remove(GUARDRAILS, noted):
                return DeletedGuardrail(id=guardrail_id)
        raise Unavailable("The guardrail is being changed by others.", retry_after=1)

    async def _conclude(
        self, obj: Object, spec: Mapping[str, Any], *, replayed: bool
    ) -> tuple[Guardrail, bool]:
        """Return the response to the create of `obj`, which is deleted if its name is taken.

        A checked one stays, even if names have changed since. Raises Conflict.
        """
        if not _is_checked(obj):
            # one that was found may have been written since: it yields to any other of its name
            is_first = await self._is_first(obj, now=replayed)
            if not is_first and not await self._repository.retract(GUARDRAILS, obj, _is_checked):
                raise _taken(spec["displayName"])
            if is_first and not await self._unmark(obj):
                raise _taken(spec["displayName"])
        return _render_new(obj, spec), replayed

    async def _unmark(self, obj: Object) -> bool:
        """Remove the mark; False if the object was deleted meanwhile.

        From then on the object has rows in the audit, which its finalizer keeps.
        """

        def decide(current: Object) -> Mapping[str, Any] | None:
            if _is_marked(current):
                finalizers = [*{*(current["metadata"].get("finalizers") or ()), REMAINS_FINALIZER}]
                annotations = {UNCHECKED_ANNOTATION: None}
                return {"metadata": {"annotations": annotations, "finalizers": finalizers}}
            return None

        account, wire_id = obj["spec"]["accountName"], name_to_id(obj["metadata"]["name"])
        try:
            await self._repository.change(GUARDRAILS, account, wire_id, decide)
        except NotFound:
            return False
        return True

    async def _is_first(self, obj: Object, *, now: bool = False) -> bool:
        """Return whether its name was unique when this version was written, or is now."""
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
        """Number of assigned keys of each guardrail; names of deleted keys do not count."""
        named = [set(obj["spec"].get("keyNames") or ()) for obj in objects]
        if not any(named):
            return [0 for _ in named]
        keys = await self._repository.list_all(KEYS, account, names_only=True)
        return [len(names & keys.objects.keys()) for names in named]


def _render_new(obj: Object, spec: Mapping[str, Any]) -> Guardrail:
    """Return the guardrail as it was when it was made of `spec`."""
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
    """Return whether a guardrail stays: its create was answered, or keys are assigned to it."""
    return not _is_marked(obj) or bool(obj["spec"].get("keyNames"))


def _check_name(objects: Iterable[Object], name: str) -> None:
    if any(obj["spec"]["displayName"] == name for obj in objects):
        raise _taken(name)


def _taken(name: str) -> Conflict:
    return Conflict(f"A guardrail called {name} is there already.", param="name")
