"""`/keys`: standard keys of the account (contract §9)."""

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
from gateway_apiserver.surfaces.management import CREATE_OWN, GOVERN_OWN, LABEL, ROOT
from gateway_apiserver.surfaces.management.keys import KeyService
from gateway_apiserver.surfaces.management.requests import KeyCreate, KeyPatch, KeyQuery, Rotation
from gateway_apiserver.surfaces.management.responses import DeletedKey, Key, KeyWithSecret
from gateway_apiserver.surfaces.models import Page
from gateway_core.providers.offers import FIELDS, Offers

router = APIRouter(prefix=f"{ROOT}/keys", route_class=GatewayRoute, tags=["Keys"])

Keys = Annotated[KeyService, Depends(provided(KeyService))]
Offered = Annotated[Offers, Depends(provided(Offers))]
WITHOUT_OVERLAP = Rotation()


@router.get("", operation_id="listKeys", summary="List standard keys")
@requires(GOVERN_OWN, LABEL)
async def list_keys(query: Annotated[KeyQuery, Query()], caller: ByCaller, keys: Keys) -> Page[Key]:
    """List a page of the account's keys, including revoked ones."""
    return await keys.list_page(caller, query)


@router.post("", status_code=201, operation_id="createKey", summary="Create a standard key")
@requires(CREATE_OWN, LABEL)
async def create_key(
    body: KeyCreate,
    caller: ByCaller,
    key: IdempotencyKey,
    keys: Keys,
    offers: Offered,
    response: Response,
) -> KeyWithSecret:
    """Create a key; its secret is shown only in this response."""
    created, is_replayed = await keys.create(caller, key, body)
    mark_replayed(response, is_replayed=is_replayed)
    warn(response, offers.current.find_unknown(created.model_dump(include={*FIELDS})))
    return created


@router.get("/{key_id}", operation_id="showKey", summary="Show a key")
@requires(GOVERN_OWN, LABEL)
async def show_key(key_id: str, caller: ByCaller, keys: Keys) -> Key:
    """Show one key."""
    return await keys.show(caller, key_id)


@router.patch(
    "/{key_id}",
    operation_id="changeKey",
    summary="Change a key",
    responses={409: {}, 504: {}},
)
@requires(GOVERN_OWN, LABEL)
async def change_key(
    key_id: str,
    body: KeyPatch,
    caller: ByCaller,
    keys: Keys,
    offers: Offered,
    response: Response,
) -> Key:
    """Apply a merge patch to a key."""
    changed = await keys.change(caller, key_id, body)
    warn(response, offers.current.find_unknown(changed.model_dump(include={*FIELDS})))
    return changed


@router.delete(
    "/{key_id}",
    operation_id="revokeKey",
    summary="Revoke a key for good",
    responses={400: {}, 504: {}},
)
@requires(GOVERN_OWN, LABEL)
async def revoke_key(key_id: str, caller: ByCaller, keys: Keys) -> DeletedKey:
    """Revoke a key for good. Idempotent."""
    return await keys.revoke(caller, key_id)


@router.post("/{key_id}/rotate", operation_id="rotateKey", summary="Rotate the secret of a key")
@requires(GOVERN_OWN, LABEL)
async def rotate_key(
    key_id: str,
    caller: ByCaller,
    key: IdempotencyKey,
    keys: Keys,
    response: Response,
    body: Rotation = WITHOUT_OVERLAP,
) -> KeyWithSecret:
    """Give a key a new secret; the old one is valid until the overlap ends."""
    rotated, is_replayed = await keys.rotate(caller, key, key_id, body)
    mark_replayed(response, is_replayed=is_replayed)
    return rotated
