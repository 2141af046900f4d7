"""`/guardrails` and their assignments: limits that keys share (contract §9)."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from gateway_apiserver.access import (
    ByCaller,
    IdempotencyKey,
    mark_replayed,
    provided,
    requires,
    warn,
)
from gateway_apiserver.routes import GatewayRoute
from gateway_apiserver.surfaces.management import CREATE, GOVERN, LABEL, ROOT
from gateway_apiserver.surfaces.management.assignments import AssignmentService
from gateway_apiserver.surfaces.management.guardrails import GuardrailService
from gateway_apiserver.surfaces.management.requests import (
    DeleteQuery,
    GuardrailCreate,
    GuardrailPatch,
    KeyIds,
    ListQuery,
)
from gateway_apiserver.surfaces.management.responses import (
    Assigned,
    Assignment,
    DeletedGuardrail,
    Guardrail,
    Unassigned,
)
from gateway_apiserver.surfaces.models import Page
from gateway_core.providers.offers import FIELDS, Offers

router = APIRouter(prefix=f"{ROOT}/guardrails", route_class=GatewayRoute, tags=["Guardrails"])

Guardrails = Annotated[GuardrailService, Depends(provided(GuardrailService))]
Assignments = Annotated[AssignmentService, Depends(provided(AssignmentService))]
Offered = Annotated[Offers, Depends(provided(Offers))]
Listing = Annotated[ListQuery, Query()]


@router.get("", operation_id="listGuardrails", summary="List guardrails")
@requires(GOVERN, LABEL)
async def list_guardrails(
    query: Listing, caller: ByCaller, guardrails: Guardrails
) -> Page[Guardrail]:
    """List a page of the account's guardrails."""
    return await guardrails.list_page(caller.account, query)


@router.post("", status_code=201, operation_id="createGuardrail", summary="Create a guardrail")
@requires(CREATE, LABEL)
async def create_guardrail(
    body: GuardrailCreate,
    caller: ByCaller,
    key: IdempotencyKey,
    guardrails: Guardrails,
    offers: Offered,
    response: Response,
) -> Guardrail:
    """Create a guardrail whose name is unique in the account."""
    created, is_replayed = await guardrails.create(caller, key, body)
    mark_replayed(response, is_replayed=is_replayed)
    warn(response, offers.current.find_unknown(created.model_dump(include={*FIELDS})))
    return created


@router.get("/{guardrail_id}", operation_id="showGuardrail", summary="Show a guardrail")
@requires(GOVERN, LABEL)
async def show_guardrail(guardrail_id: str, caller: ByCaller, guardrails: Guardrails) -> Guardrail:
    """Show one guardrail."""
    return await guardrails.show(caller.account, guardrail_id)


@router.patch(
    "/{guardrail_id}",
    operation_id="changeGuardrail",
    summary="Change a guardrail",
    responses={409: {}, 504: {}},
)
@requires(GOVERN, LABEL)
async def change_guardrail(
    guardrail_id: str,
    body: GuardrailPatch,
    caller: ByCaller,
    guardrails: Guardrails,
    offers: Offered,
    response: Response,
) -> Guardrail:
    """Apply a merge patch to a guardrail."""
    changed = await guardrails.change(caller, guardrail_id, body)
    warn(response, offers.current.find_unknown(changed.model_dump(include={*FIELDS})))
    return changed


@router.delete(
    "/{guardrail_id}",
    operation_id="deleteGuardrail",
    summary="Delete a guardrail",
    responses={409: {}},
)
@requires(GOVERN, LABEL)
async def delete_guardrail(
    guardrail_id: str,
    query: Annotated[DeleteQuery, Query()],
    caller: ByCaller,
    guardrails: Guardrails,
) -> DeletedGuardrail:
    """Delete a guardrail; one with assigned keys only with `force`."""
    return await guardrails.delete(caller, guardrail_id, force=query.force == "true")


@router.get(
    "/{guardrail_id}/assignments",
    operation_id="listAssignments",
    summary="List the keys of a guardrail",
)
@requires(GOVERN, LABEL)
async def list_assignments(
    guardrail_id: str, query: Listing, caller: ByCaller, assignments: Assignments
) -> Page[Assignment]:
    """List a page of the guardrail's keys, by their creation."""
    return await assignments.list_page(caller.account, guardrail_id, query)


@router.post(
    "/{guardrail_id}/assignments",
    operation_id="assignKeys",
    summary="Assign keys to a guardrail",
)
@requires(GOVERN, LABEL)
async def assign_keys(
    guardrail_id: str,
    body: KeyIds,
    caller: ByCaller,
    key: IdempotencyKey,
    assignments: Assignments,
    response: Response,
) -> Assigned:
    """Assign the keys to the guardrail, all or none."""
    is_replayed = await assignments.assign(caller, key, guardrail_id, body.key_ids)
    mark_replayed(response, is_replayed=is_replayed)
    return Assigned(assigned_count=len(body.key_ids))


@router.post(
    "/{guardrail_id}/assignments/remove",
    operation_id="unassignKeys",
    summary="Remove keys from a guardrail",
)
@requires(GOVERN, LABEL)
async def unassign_keys(
    guardrail_id: str,
    body: KeyIds,
    caller: ByCaller,
    key: IdempotencyKey,
    assignments: Assignments,
    response: Response,
) -> Unassigned:
    """Remove the keys from the guardrail, all or none."""
    is_replayed = await assignments.remove(caller, key, guardrail_id, body.key_ids)
    mark_replayed(response, is_replayed=is_replayed)
    return Unassigned(unassigned_count=len(body.key_ids))
