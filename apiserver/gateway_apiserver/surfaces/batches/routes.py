"""Batches: create, list, retrieve, cancel (contract §5). The operator runs them.

A create is a paid call that holds no money yet: the operator reserves the price of the lines once
it has counted them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from starlette.routing import BaseRoute

from gateway_apiserver.endpoints import Call, CallRoute, Docs
from gateway_apiserver.surfaces.batches.models import ENDPOINT, WINDOW, Batch, BatchCreate
from gateway_apiserver.surfaces.files.finder import FileFinder
from gateway_apiserver.surfaces.models import Page, PageQuery
from gateway_apiserver.surfaces.validation import (
    invalid,
    read_idempotency_key,
    read_object,
    read_openai_body,
    read_openai_query,
    unknown,
)
from gateway_core.accounts.roles import Act
from gateway_core.admission.admission import Access, Admission, Payer, capture
from gateway_core.api.batch import GatewayBatch
from gateway_core.api.errors import Conflict, KeyReused, NotFound
from gateway_core.api.ids import (
    ACCOUNT_LABEL,
    BATCH_FINALIZER,
    BATCH_PREFIX,
    CANCELLED_AT_ANNOTATION,
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
from gateway_core.api.times import format_precise_time, format_time
from gateway_core.batches.rendering import has_ended, read_status, render_batch
from gateway_core.kube.clock import CLOCK
from gateway_core.kube.kinds import BATCHES, OPEN_BATCHES
from gateway_core.kube.lists import find_position, wrap_page
from gateway_core.kube.repository import Repository
from gateway_core.tasks.validation import fingerprint
from gateway_web.responses import Response, to_json

PATH = "/v1/batches"
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


class BatchRoutes:
    """Create, list, retrieve, cancel. An account may have `most_open` Batches that did not end."""

    def __init__(
        self,
        admission: Admission,
        repository: Repository,
        files: FileFinder,
        mint: IdMint,
        *,
        most_open: int,
        clock: Callable[[], datetime] = CLOCK.now,
    ) -> None:
        self._admission = admission
        self._repository = repository
        self._files = files
        self._mint = mint
        self._most_open = most_open
        self._clock = clock

    def add_to(self, routes: list[BaseRoute]) -> None:
        """Add the routes; creates are paid calls and pass `admission`."""
        one, cancel = PATH + "/{batch_id}", PATH + "/{batch_id}/cancel"
        title = "Run the moderations of a File"
        docs = Docs("createBatch", title, Batch, body=BatchCreate, makes="Batch", also=(404,))
        routes.append(CallRoute("POST", PATH, self.create, "batch_create", docs=docs, paid=True))
        docs = Docs("listBatches", "Batches, the newest first", Page[Batch], query=PageQuery)
        routes.append(CallRoute("GET", PATH, self.list, "batch_list", Access(), docs))
        docs = Docs("showBatch", "One Batch", Batch)
        routes.append(CallRoute("GET", one, self.show, "batch_read", Access(), docs))
        docs = Docs("cancelBatch", "End a Batch early", Batch, also=(400, 409, 413, 415, 504))
        routes.append(
            CallRoute("POST", cancel, self.cancel, "batch_cancel", Access(Act.CREATE), docs)
        )

    async def create(self, call: Call) -> Response:
        """Create a Batch of a File, or find that of an earlier call with the Idempotency-Key."""
        payer = await self._admission.authenticate(call.headers, call.context)
        prepared, problem = await capture(self._prepare(call, payer))
        await self._admission.reserve(payer, call.context, None, problem)
        assert prepared is not None, "its problem was raised"
        obj, is_new = await self._create_or_get(call, payer, prepared)
        call.context.outcome = "created" if is_new else "replayed"
        return to_json(render_batch(obj), replayed=not is_new)

    async def show(self, call: Call) -> Response:
        """One Batch."""
        return to_json(render_batch(await self._find(call.account, call.wire_id)))

    async def list(self, call: Call) -> Response:
        """A page of the account's Batches, the newest first."""
        account = call.account
        query = read_openai_query(PageQuery, call.query)
        after = None
        if query.after is not None:
            after = find_position(await self._find_cursor(account, query.after))
        names, has_more = await self._repository.list_names(
            BATCHES, account, after=after, limit=query.limit, order=query.order
        )
        page = await self._repository.show_each(BATCHES, account, names, render_batch)
        return to_json(wrap_page(page, has_more))

    async def cancel(self, call: Call) -> Response:
        """Cancel a Batch. Idempotent."""
        await read_object(call, optional=True)
        wire_id = call.wire_id

        def decide(obj: Object) -> Mapping[str, Any] | None:
            if not _is_shown(obj):
                raise _unknown(wire_id)
            status = read_status(obj)
            if status in ("cancelling", "cancelled"):
                return None
            if has_ended(obj):
                raise Conflict(
                    f"Batch {name_to_id(obj['metadata']['name'])} is already {status}.",
                    code="batch_state_conflict",
                )
            moment = format_time(self._clock())
            return {
                "metadata": {"annotations": {CANCELLED_AT_ANNOTATION: moment}},
                "spec": {"desiredState": "Cancelled"},
            }

        try:
            obj = await self._repository.change(BATCHES, call.account, wire_id, decide)
        except NotFound:
            raise _unknown(wire_id) from None
        return to_json(render_batch(obj))

    async def _prepare(self, call: Call, payer: Payer) -> _Prepared:
        draft = await read_openai_body(call, BatchCreate)
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
        """The object, and whether this call has made it."""
        if prepared.found is not None:
            return prepared.found, False
        obj = _compose(call, payer, prepared)
        made, is_own = await self._repository.create(BATCHES, obj)
        if not is_own:
            check_same(made, prepared.draft)
        return made, is_own

    async def _find_cursor(self, account: str, wire_id: str) -> Object:
        """The Batch that a cursor names, also one that is being deleted. NotFound."""
        try:
            return await self._repository.find(BATCHES, account, wire_id)
        except NotFound:
            raise _unknown(wire_id, param="after") from None

    async def _find(self, account: str, wire_id: str) -> Object:
        try:
            obj = await self._repository.find(BATCHES, account, wire_id)
        except NotFound:
            raise _unknown(wire_id) from None
        if not _is_shown(obj):
            raise _unknown(wire_id)
        return obj


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


def _is_shown(obj: Object) -> bool:
    return not obj["metadata"].get("deletionTimestamp")


def _unknown(wire_id: str, *, param: str | None = None) -> NotFound:
    """No such Batch, or another account's (§0.5)."""
    return unknown(BATCH_PREFIX, wire_id, param=param)
