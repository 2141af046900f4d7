"""Task creates: body and model, replay by Idempotency-Key, the object (contract §2.1, §2.2).

Used by `routes.tasks`; what they have in common with other paid calls is `entrance`'s.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from starlette.types import Receive

from gateway_apiserver.admission.admission import Admission, Payer
from gateway_apiserver.catalog import CatalogView
from gateway_apiserver.concurrency import INPUT_SECONDS, StoreTimeout
from gateway_apiserver.context import Header, RequestContext
from gateway_apiserver.failpoints import Failpoints
from gateway_apiserver.surfaces.bodies import read_idempotency_key, read_json_body
from gateway_apiserver.tasks.drafts import Draft, draft_task, find_model, price_draft, to_input
from gateway_apiserver.tasks.finder import TaskFinder
from gateway_apiserver.tasks.recording import (
    KeyReused,
    TaskRecorder,
    WinnerUndecided,
    is_same_request,
)
from gateway_core.api.errors import GatewayError, OutcomeUnknown, Unavailable
from gateway_core.api.ids import (
    ACCOUNT_LABEL,
    GIVEN_DIGEST_ANNOTATION,
    REQUEST_ID_ANNOTATION,
    SHARD_LABEL,
    TASK_FINALIZER,
    TASK_PREFIX,
    TRACEPARENT_ANNOTATION,
    IdMint,
    id_to_name,
    shard_of,
)
from gateway_core.api.resource import skeleton
from gateway_core.api.task import GatewayTask
from gateway_core.billing.counters import Hold
from gateway_core.egress.addresses import AddressPolicy
from gateway_core.kube.clock import CLOCK
from gateway_core.kube.records import Object, Table
from gateway_core.observability.tracing import SpanKind
from gateway_core.providers.catalog import Model
from gateway_core.storage.objects import ObjectStore, StoreUnavailable
from gateway_core.tasks.archive import store_input
from gateway_core.tasks.operations import MAX_BODY_BYTES, Operation


@dataclass(frozen=True, slots=True)
class TaskCall:
    """A create at `/api/v1/{service}/{action}`, its body unread."""

    service: str
    operation: Operation
    headers: Iterable[Header]
    receive: Receive
    context: RequestContext


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A task that stands, and whether an earlier call made it."""

    task_id: str
    replayed: bool


@dataclass(frozen=True, slots=True)
class _Replay:
    """A task that is there already is shown."""

    task_id: str
    hold: None = None


@dataclass(frozen=True, slots=True)
class _Creation:
    """A task is made; a `keyed` one by any of the calls with its Idempotency-Key."""

    task_id: str
    keyed: bool
    draft: Draft
    model: Model
    hold: Hold


class TaskAdmission:
    """Decides on task creates and carries out what it accepts."""

    def __init__(
        self,
        *,
        entrance: Admission,
        catalog: CatalogView,
        finder: TaskFinder,
        recorder: TaskRecorder,
        tasks: Table[Any],
        store: ObjectStore,
        mint: IdMint,
        addresses: AddressPolicy,
        task_id_header: str,
        failpoints: Failpoints,
        clock: Callable[[], datetime] = CLOCK.now,
    ) -> None:
        self._entrance = entrance
        self._catalog = catalog
        self._finder = finder
        self._recorder = recorder
        self._tasks = tasks
        self._store = store
        self._patience = StoreTimeout(INPUT_SECONDS)
        self._mint = mint
        self._addresses = addresses
        self._task_id_header = task_id_header.lower().encode()
        self._failpoints = failpoints
        self._clock = clock

    async def admit(self, call: TaskCall) -> Acceptance:
        """A task for `call`, new or replayed; never before its object is acknowledged.

        Raises every GatewayError that the contract has for a task create.
        """
        with self._entrance.decide(call.context) as decision:
            try:
                acceptance = await self._pass(call)
            except (KeyReused, OutcomeUnknown):
                if call.context.task is not None:
                    call.context.headers.append((self._task_id_header, call.context.task.encode()))
                raise
            decision.outcome = "replayed" if acceptance.replayed else "created"
        return acceptance

    async def _pass(self, call: TaskCall) -> Acceptance:
        drafts: list[Draft] = []

        async def plan_once_read(payer: Payer) -> _Replay | _Creation:
            # a body can be read once, and a plan be asked for again
            if not drafts:
                drafts.append(await self._read(call))
            return await self._plan(call, payer, drafts[0])

        payer, plan = await self._entrance.enter(call.headers, call.context, plan_once_read)
        call.context.task = plan.task_id
        if isinstance(plan, _Replay):
            return Acceptance(plan.task_id, replayed=True)
        return await self._create(call, payer, plan)

    async def _read(self, call: TaskCall) -> Draft:
        raw = await read_json_body(call.headers, call.receive, MAX_BODY_BYTES)
        return draft_task(self._catalog.current, call.operation, call.service, raw, self._addresses)

    async def _plan(self, call: TaskCall, payer: Payer, draft: Draft) -> _Replay | _Creation:
        key, account = read_idempotency_key(call.headers), payer.account.name
        if key is None:
            task_id = self._mint.mint_random(TASK_PREFIX, account)
        else:
            path = f"/api/v1/{call.service}/{call.operation.action}"
            task_id = self._mint.mint_keyed(TASK_PREFIX, account, path, key)
            found = await self._finder.find_object(account, id_to_name(task_id))
            if found is not None:
                call.context.task = task_id
                if is_same_request(found, draft.given_digest, draft.digest):
                    return _Replay(task_id)
                raise KeyReused
        model = find_model(draft)
        payer.policy.check(call.service, draft.model_id)
        micros = price_draft(draft, model, self._clock())
        hold = payer.make_hold(id_to_name(task_id), micros)
        return _Creation(task_id, key is not None, draft, model, hold)

    async def _create(self, call: TaskCall, payer: Payer, plan: _Creation) -> Acceptance:
        try:
            obj = await self._compose(call, payer, plan)
            self._failpoints.reach("before-create")
            with call.context.span.child("record", kind=SpanKind.CLIENT):
                recorded = await self._recorder.record(obj)
            self._failpoints.reach("after-create")
        except GatewayError as error:
            # the hold stays where the task may be there, of this call or of another with the same
            # Idempotency-Key: then it needs it, and else the sweeper ends it
            if not plan.keyed and not isinstance(error, OutcomeUnknown | WinnerUndecided):
                await self._entrance.release(payer, plan.hold)
            raise
        self._tasks.offer(recorded.object)
        return Acceptance(plan.task_id, recorded.replayed)

    async def _compose(self, call: TaskCall, payer: Payer, plan: _Creation) -> Object:
        draft, account, name = plan.draft, payer.account.name, plan.hold.task
        try:
            # bytes of their own for each body: an equal name may be in a race with other input
            async with self._patience.bound():
                stored = await store_input(
                    self._store, account, f"{name}-{draft.digest[:16]}", to_input(draft)
                )
        except StoreUnavailable as error:
            raise Unavailable("The task's input could not be stored.") from error
        request: dict[str, Any] = {
            "accountName": account,
            "keyName": payer.policy.key_name,
            "service": call.service,
            "action": call.operation.action,
            "modelId": draft.model_id,
            **stored,
            "fingerprint": draft.digest,
            "reservedMicros": plan.hold.micros,
        }
        if plan.model.keyed_route is not None:
            request["route"] = plan.model.keyed_route.model_dump(by_alias=True)
        if payer.policy.guardrail_names:
            request["guardrailNames"] = list(payer.policy.guardrail_names)
        callback_url = draft.complete.get("callback_url")
        if callback_url is not None:
            scheme, rest = callback_url.split("://", 1)
            request["callbackUrl"] = f"{scheme.lower()}://{rest}"
        head = skeleton(
            GatewayTask,
            name,
            labels={ACCOUNT_LABEL: account, SHARD_LABEL: str(shard_of(name))},
            annotations={
                REQUEST_ID_ANNOTATION: call.context.request_id,
                GIVEN_DIGEST_ANNOTATION: draft.given_digest,
                **_name_trace(call.context),
            },
            finalizers=[TASK_FINALIZER],
        )
        return {
            **head,
            "spec": {"request": request, "deadlineSeconds": plan.model.deadline_seconds},
        }


def _name_trace(context: RequestContext) -> dict[str, str]:
    """The annotation by which whatever becomes of the task joins the request's trace."""
    trace = context.span.context
    return {} if trace is None else {TRACEPARENT_ANNOTATION: str(trace)}
