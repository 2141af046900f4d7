"""Making an Upload: its storage is claimed, then its object created (contract §4.1, §2.2).

The create is the lock. Calls with one Idempotency-Key share one claim, as the Upload may be any of
theirs: none of them gives it back, and where no Upload comes of it the operator does.
"""

import asyncio

import structlog

from gateway_apiserver.surfaces.uploads.models import UploadCreate
from gateway_core.accounts.authentication import Principal
from gateway_core.api.errors import (
    Internal,
    KeyReused,
    OutcomeUnknown,
    TooManyCalls,
    Unavailable,
    WinnerUndecided,
)
from gateway_core.api.ids import (
    ACCOUNT_LABEL,
    REQUEST_ID_ANNOTATION,
    SHARD_LABEL,
    STORED_FINALIZER,
    UPLOAD_PREFIX,
    IdMint,
    id_to_name,
    shard_of,
)
from gateway_core.api.resource import Object, skeleton
from gateway_core.api.upload import GatewayUpload
from gateway_core.files.parts import UploadParts
from gateway_core.files.quota import StorageFull, StorageQuota
from gateway_core.files.uploads import UploadOutcomes, is_withdrawn
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import (
    AlreadyExists,
    KubernetesUnavailable,
    ObjectNotFound,
    RequestRejected,
    WriteConflict,
    WriteOutcomeUnknown,
)

_TEMPLATE = "/v1/uploads"
_log = structlog.get_logger(__name__)


class UploadCreation:
    """Creates Uploads, or finds those that an equal call made."""

    def __init__(
        self,
        kube: KubernetesClient,
        storage: StorageQuota,
        parts: UploadParts,
        outcomes: UploadOutcomes,
        mint: IdMint,
    ) -> None:
        self._kube = kube
        self._storage = storage
        self._parts = parts
        self._outcomes = outcomes
        self._mint = mint

    async def create(
        self,
        caller: Principal,
        wanted: UploadCreate,
        idempotency_key: str | None,
        request_id: str,
    ) -> tuple[Object, bool]:
        """The Upload, and whether another call made it.

        Raises:
            KeyReused: the Idempotency-Key stands for another Upload.
            StorageFull: the account has no room.
            TooManyCalls: too many of its Uploads are pending.
            Unavailable: nothing was made.
            OutcomeUnknown: it was sent and not acknowledged within 10 s.
        """
        account = caller.account.name
        wire_id = (
            self._mint.mint_random(UPLOAD_PREFIX, account)
            if idempotency_key is None
            else self._mint.mint_keyed(UPLOAD_PREFIX, account, "POST", _TEMPLATE, idempotency_key)
        )
        name, limit = id_to_name(wire_id), caller.account.storage_bytes
        if idempotency_key is not None and (found := await self._look_up(name)) is not None:
            return _check_same(found, wanted), True
        await self._storage.claim(account, "files", name, wanted.bytes, limit)
        obj = _compose(caller, name, wanted, request_id)
        try:
            await self._parts.begin(account, name)
            stands, is_new = await self._record(obj)
        except (TooManyCalls, Unavailable, Internal):
            if idempotency_key is None:
                await self._storage.release(account, "files", name)
                await self._parts.forget(account, name)
            raise
        if not is_new:
            if stands["spec"].get("outcome", "Pending") != "Pending":
                await self._outcomes.end_reservation(stands)
                await self._parts.forget(account, name)
            return _check_same(stands, wanted), True
        try:
            await self._storage.confirm(account, "files", name, wanted.bytes, limit)
        except StorageFull:
            await self._withdraw(stands)
            await self._parts.forget(account, name)
            raise
        return stands, False

    async def _look_up(self, name: str) -> Object | None:
        try:
            async with asyncio.timeout(1):
                return await self._kube.get(GatewayUpload.plural, name)
        except ObjectNotFound:
            return None
        except (KubernetesUnavailable, TimeoutError) as error:
            raise _unavailable() from error

    async def _record(self, obj: Object) -> tuple[Object, bool]:
        """Creates `obj` or finds the one of its name; whether this call has made it."""
        try:
            return await self._kube.create_or_get(GatewayUpload.plural, obj)
        except AlreadyExists as error:
            raise WinnerUndecided from error
        except WriteOutcomeUnknown as error:
            raise OutcomeUnknown(
                "The upload was not acknowledged in time; it may have been created."
            ) from error
        except KubernetesUnavailable as error:
            raise _unavailable() from error
        except RequestRejected as error:
            _log.error("an upload was rejected", error=str(error))
            raise Internal("The upload could not be recorded.") from error

    async def _withdraw(self, obj: Object) -> None:
        """Ends an Upload for which there is no room after all; else its hour does."""
        try:
            await self._outcomes.withdraw(obj)
        except (WriteConflict, ObjectNotFound, KubernetesUnavailable, WriteOutcomeUnknown) as error:
            _log.warning("an upload was not withdrawn", error=str(error))


def _compose(caller: Principal, name: str, wanted: UploadCreate, request_id: str) -> Object:
    account = caller.account.name
    head = skeleton(
        GatewayUpload,
        name,
        labels={ACCOUNT_LABEL: account, SHARD_LABEL: str(shard_of(name))},
        annotations={REQUEST_ID_ANNOTATION: request_id},
        finalizers=[STORED_FINALIZER],
    )
    request = {
        "accountName": account,
        "keyName": caller.key.name,
        "purpose": wanted.purpose,
        "filename": wanted.stored_name,
        "mediaType": wanted.mime_type,
        "bytes": wanted.bytes,
        **({} if wanted.life is None else {"expiresAfterSeconds": wanted.life}),
        "fingerprint": wanted.fingerprint,
    }
    return {**head, "spec": {"request": request, "outcome": "Pending"}}


def _check_same(found: Object, wanted: UploadCreate) -> Object:
    """The Upload as it was when it was made, if it is what is asked for.

    Raises KeyReused; StorageFull where that was the answer to who made it.
    """
    if found["spec"]["request"].get("fingerprint") != wanted.fingerprint:
        raise KeyReused
    if is_withdrawn(found):
        raise StorageFull
    return {**found, "spec": {**found["spec"], "outcome": "Pending"}}


def _unavailable() -> Unavailable:
    return Unavailable("The upload cannot be recorded now.", retry_after=1)
