"""Creation of a Batch: a paid call, which holds no money yet (contract §5.1).

The operator reserves the price of the lines once it has counted them.
"""

from dataclasses import dataclass
from typing import Any

from starlette.routing import BaseRoute

from gateway_apiserver.endpoints import Call, CallRoute, Docs
from gateway_apiserver.surfaces.batches.models import ENDPOINT, WINDOW, Batch, BatchCreate
from gateway_apiserver.surfaces.batches.rendering import render_batch
from gateway_apiserver.surfaces.batches.service import PATH
from gateway_apiserver.surfaces.files.finder import FileFinder
from gateway_apiserver.surfaces.validation import (
    invalid,
    read_idempotency_key,
    read_object,
    unknown,
    validate_openai,
)
from gateway_core.admission.admission import Admission, Payer, capture
from gateway_core.api.batch import GatewayBatch
from gateway_core.api.errors import Conflict, KeyReused
from gateway_core.api.ids import (
    ACCOUNT_LABEL,
    BATCH_FINALIZER,
    BATCH_PREFIX,
    CREATED_ANNOTATION,
    REQUEST_ID_ANNOTATION,
    SEQUENCE_ANNOTATION,
    SHARD_LABEL,
    IdMint,
    id_to_name,
    name_to_id,
    shard_of,
)
from gateway_core.api.resource import Object, skeleton
from gateway_core.api.times import format_precise_time
from gateway_core.kube.clock import CLOCK
from gateway_core.kube.kinds import BATCHES, OPEN_BATCHES
from gateway_core.kube.repository import Repository
from gateway_core.tasks.validation import fingerprint
from gateway_web.responses import Response, to_json

MOST_COPIED = 16
"""Segments of a File that a Batch takes over; of more the operator reads the File, which stays
until no unsettled Batch names it. A thousand of them in each Batch would fill the record."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A Batch to create: an earlier call's (`found`), or a new one of a File.

    `version` is the Kubernetes API's from before the File was read.
    """

    name: str
    draft: BatchCreate
    found: Object | None = None
    file: Object | None = None
    version: str = ""


class BatchCreation:
    """`POST /v1/batches`. An account may have `most_open` Batches that did not end."""

    def __init__(
        self,
        admission: Admission,
        repository: Repository,
        files: FileFinder,
        mint: IdMint,
        *,
        most_open: int,
    ) -> None:
        self._admission = admission
        self._repository = repository
        self._files = files
        self._mint = mint
        self._most_open = most_open

    def add_to(self, routes: list[BaseRoute]) -> None:
        """Add the route."""
        docs = Docs(
            "createBatch",
            "Create a Batch of moderations",
            Batch,
            body=BatchCreate,
            makes="Batch",
            also=(404,),
        )
        routes.append(CallRoute("POST", PATH, self.create, "batch_create", docs=docs, paid=True))

    async def create(self, call: Call) -> Response:
        """Create a Batch of a File, or find that of an earlier call with the Idempotency-Key."""
        payer = await self._admission.authenticate(call.headers, call.context)
        prepared, problem = await capture(self._prepare(call, payer))
        await self._admission.reserve(payer, call.context, None, problem)
        assert prepared is not None, "its problem was raised"
        obj, is_new = await self._create_or_get(call, payer, prepared)
        call.context.outcome = "created" if is_new else "replayed"
        return to_json(render_batch(obj), replayed=not is_new)

    async def _prepare(self, call: Call, payer: Payer) -> _Prepared:
        draft = validate_openai(BatchCreate, await read_object(call))
        account, key = payer.account.name, read_idempotency_key(call.headers)
        if key is None:
            name = id_to_name(self._mint.mint_random(BATCH_PREFIX, account))
        else:
            name = id_to_name(self._mint.mint_keyed(BATCH_PREFIX, account, PATH, key))
            found = await self._repository.look_up(BATCHES, name)
            if found is not None:
                check_same(found, draft)
                return _Prepared(name, draft, found)
        # read first: the removal of a File waits for Batches that are being created from it
        version = await self._repository.read_version(BATCHES)
        file = await self._files.find(account, draft.input_file_id, param="input_file_id")
        if file["spec"]["request"]["purpose"] != "batch":
            raise invalid(
                "input_file_id",
                "must name a File of purpose 'batch'",
                code="invalid_file_purpose",
            )
        await self._check_room(account)
        return _Prepared(name, draft, None, file, version)

    async def _check_room(self, account: str) -> None:
        """Raise Conflict at the limit; concurrent calls may exceed it by their number."""
        listing = await self._repository.list_all(OPEN_BATCHES, account, names_only=True)
        if len(listing.objects) >= self._most_open:
            raise Conflict(
                f"The account has {len(listing.objects)} batches that have not ended; at most"
                f" {self._most_open} are allowed.",
                code="batch_state_conflict",
            )

    async def _create_or_get(
        self, call: Call, payer: Payer, prepared: _Prepared
    ) -> tuple[Object, bool]:
        """Return the object, and whether this call has made it."""
        if prepared.found is not None:
            return prepared.found, False
        obj = _compose(call, payer, prepared)
        made, is_own = await self._repository.create(BATCHES, obj)
        if not is_own:
            check_same(made, prepared.draft)
        return made, is_own


def check_same(obj: Object, draft: BatchCreate) -> None:
    """Raise KeyReused for a Batch of another body, NotFound for one that is being deleted."""
    if obj["metadata"].get("deletionTimestamp"):
        raise unknown(BATCH_PREFIX, name_to_id(obj["metadata"]["name"]))
    if obj["spec"]["request"].get("fingerprint") != fingerprint(draft.values):
        raise KeyReused


def _compose(call: Call, payer: Payer, prepared: _Prepared) -> Object:
    draft, account, file = prepared.draft, payer.account.name, prepared.file
    assert file is not None
    request: dict[str, Any] = {
        "accountName": account,
        "keyName": payer.policy.key_name,
        "endpoint": ENDPOINT,
        "completionWindow": WINDOW,
        "inputFileName": file["metadata"]["name"],
        "fingerprint": fingerprint(draft.values),
    }
    segments = file["spec"]["request"]["segments"]
    if len(segments) <= MOST_COPIED:
        request["segments"] = segments
    if payer.policy.guardrail_names:
        request["guardrailNames"] = list(payer.policy.guardrail_names)
    if draft.metadata is not None:
        request["metadata"] = dict(draft.metadata)
    if draft.life is not None:
        request["outputExpiresAfterSeconds"] = draft.life
    head = skeleton(
        GatewayBatch,
        prepared.name,
        labels={ACCOUNT_LABEL: account, SHARD_LABEL: str(shard_of(prepared.name))},
        annotations={
            REQUEST_ID_ANNOTATION: call.context.request_id,
            CREATED_ANNOTATION: format_precise_time(CLOCK.now()),
            SEQUENCE_ANNOTATION: prepared.version,
        },
        finalizers=[BATCH_FINALIZER],
    )
    return {**head, "spec": {"request": request}}
