"""The one pipeline that every paid task call passes, in the order of contract §0.9.

What can be decided without the counters is worked out first and kept back, so that they are asked
once: the call is counted whatever becomes of it, and money is held only where nothing else stands
in the way. The answer then follows the contract's order, the rate before everything.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from starlette.types import Receive

from gateway_apiserver.auth import Authenticator, Principal
from gateway_apiserver.calls import read_idempotency_key, read_json_body
from gateway_apiserver.catalogs import CatalogView
from gateway_apiserver.drafts import Draft, draft_task, price_draft, to_input
from gateway_apiserver.entries import AccountRecord
from gateway_apiserver.errors import list_rate_headers
from gateway_apiserver.failpoints import Failpoints
from gateway_apiserver.finder import TaskFinder
from gateway_apiserver.metrics import ApiMetrics
from gateway_apiserver.patience import INPUT_SECONDS, Patience
from gateway_apiserver.rates import RateGate
from gateway_apiserver.recording import KeyReused, TaskRecorder, WinnerUndecided, is_same_request
from gateway_apiserver.trace import Header, Trace
from gateway_core.contract.errors import (
    GatewayError,
    InsufficientBalance,
    OutcomeUnknown,
    RateLimited,
    Unavailable,
)
from gateway_core.contract.ids import IdMint
from gateway_core.contract.money import to_decimal_text
from gateway_core.contract.names import (
    ACCOUNT_LABEL,
    GIVEN_DIGEST_ANNOTATION,
    REQUEST_ID_ANNOTATION,
    SHARD_LABEL,
    TASK_FINALIZER,
    TASK_PREFIX,
    id_to_name,
    shard_of,
)
from gateway_core.contract.resource import skeleton
from gateway_core.contract.task import GatewayTask
from gateway_core.domain.addresses import AddressPolicy
from gateway_core.domain.catalog import Model
from gateway_core.domain.operations import MAX_BODY_BYTES, Operation
from gateway_core.domain.roles import Act
from gateway_core.ports.caches import Table
from gateway_core.ports.counters import AdmissionAnswer, Hold
from gateway_core.ports.objects import ObjectStore, StoreUnavailable
from gateway_core.ports.records import Object
from gateway_core.usecases.inputs import store_input


@dataclass(frozen=True, slots=True)
class TaskCall:
    """A create at `/api/v1/{service}/{action}`, its body unread."""

    service: str
    operation: Operation
    headers: Iterable[Header]
    receive: Receive
    trace: Trace


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A task that stands, and whether an earlier call made it."""

    task_id: str
    replayed: bool


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is to be done if the counters agree: show a task that is there, or make one."""

    task_id: str
    replayed: bool
    draft: Draft
    model: Model | None = None
    micros: int = 0


class _Problem(Exception):
    """A refusal kept back until the rate is known; `task_id` is the task it concerns, if any."""

    def __init__(self, error: GatewayError, task_id: str | None = None) -> None:
        super().__init__(error)
        self.error = error
        self.task_id = task_id


class Admission:
    """Decides on task creates and carries out what it accepts."""

    def __init__(
        self,
        *,
        authenticator: Authenticator,
        catalog: CatalogView,
        gate: RateGate,
        finder: TaskFinder,
        recorder: TaskRecorder,
        tasks: Table[Any],
        store: ObjectStore,
        mint: IdMint,
        metrics: ApiMetrics,
        addresses: AddressPolicy,
        maintenance: bool,
        task_id_header: str,
        failpoints: Failpoints,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._authenticator = authenticator
        self._catalog = catalog
        self._gate = gate
        self._finder = finder
        self._recorder = recorder
        self._tasks = tasks
        self._store = store
        self._patience = Patience(INPUT_SECONDS)
        self._mint = mint
        self._metrics = metrics
        self._addresses = addresses
        self._maintenance = maintenance
        self._task_id_header = task_id_header.lower().encode()
        self._failpoints = failpoints
        self._clock = clock

    async def admit(self, call: TaskCall) -> Acceptance:
        """A task for `call`, new or replayed; never before its object is acknowledged.

        Raises every GatewayError that the contract has for a task create.
        """
        try:
            acceptance = await self._pass(call)
        except GatewayError as error:
            self._metrics.count_admission(error.code)
            raise
        self._metrics.count_admission("replayed" if acceptance.replayed else "created")
        return acceptance

    async def _pass(self, call: TaskCall) -> Acceptance:
        trace = call.trace
        if self._maintenance:
            raise Unavailable("The service is under maintenance.", retry_after=60)
        caller = await self._authenticator.authenticate(call.headers, Act.CREATE)
        account = caller.account
        trace.account = account.name
        plan, problem = None, None
        try:
            plan = await self._plan(call, account)
        except _Problem as kept:
            problem = kept
        except GatewayError as error:
            problem = _Problem(error)
        hold = None
        if plan is not None and not plan.replayed:
            hold = Hold(id_to_name(plan.task_id), plan.micros)
            self._failpoints.reach("before-reserve")
        answer = await self._gate.admit(account, hold)
        if answer.rate_exceeded:
            raise RateLimited(answer.rate, answer.retry_after)
        trace.headers.extend(list_rate_headers(answer.rate))
        if problem is not None:
            if problem.task_id is not None:
                self._name_task(trace, problem.task_id)
            raise problem.error
        assert plan is not None
        trace.task = plan.task_id
        if plan.replayed:
            return Acceptance(plan.task_id, replayed=True)
        _check_money(account, answer, plan.micros)
        self._failpoints.reach("after-reserve")
        return await self._create(call, caller, plan)

    async def _plan(self, call: TaskCall, account: AccountRecord) -> _Plan:
        raw = await read_json_body(call.headers, call.receive, MAX_BODY_BYTES)
        key = read_idempotency_key(call.headers)
        draft = draft_task(
            self._catalog.current, call.operation, call.service, raw, self._addresses
        )
        if key is None:
            task_id = self._mint.mint_random(TASK_PREFIX, account.name)
        else:
            path = f"/api/v1/{call.service}/{call.operation.action}"
            task_id = self._mint.mint_keyed(TASK_PREFIX, account.name, path, key)
            found = await self._finder.find_object(account.name, id_to_name(task_id))
            if found is not None:
                if is_same_request(found, draft.given_digest, draft.digest):
                    return _Plan(task_id, replayed=True, draft=draft)
                raise _Problem(KeyReused(), task_id)
        model, micros = price_draft(draft, self._clock())
        return _Plan(task_id, False, draft, model, micros)

    async def _create(self, call: TaskCall, caller: Principal, plan: _Plan) -> Acceptance:
        account, name = caller.account.name, id_to_name(plan.task_id)
        try:
            obj = await self._compose(call, caller, plan, name)
            self._failpoints.reach("before-create")
            recorded = await self._recorder.record(obj)
            self._failpoints.reach("after-create")
        except OutcomeUnknown:
            # the hold stays: the task may be there, and then it needs it
            self._name_task(call.trace, plan.task_id)
            raise
        except KeyReused:
            self._name_task(call.trace, plan.task_id)
            raise
        except WinnerUndecided:
            raise
        except GatewayError:
            await self._gate.release(account, name)
            raise
        self._tasks.offer(recorded.object)
        return Acceptance(plan.task_id, recorded.replayed)

    async def _compose(self, call: TaskCall, caller: Principal, plan: _Plan, name: str) -> Object:
        draft, model, account = plan.draft, plan.model, caller.account.name
        assert model is not None
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
            "keyName": caller.key_name,
            "service": call.service,
            "action": call.operation.action,
            "modelId": draft.model_id,
            **stored,
            "fingerprint": draft.digest,
            "reservedMicros": plan.micros,
        }
        callback_url = draft.complete.get("callback_url")
        if callback_url is not None:
            scheme, rest = callback_url.split("://", 1)
            request["callbackUrl"] = f"{scheme.lower()}://{rest}"
        head = skeleton(
            GatewayTask,
            name,
            labels={ACCOUNT_LABEL: account, SHARD_LABEL: str(shard_of(name))},
            annotations={
                REQUEST_ID_ANNOTATION: call.trace.request_id,
                GIVEN_DIGEST_ANNOTATION: draft.given_digest,
            },
            finalizers=[TASK_FINALIZER],
        )
        return {**head, "spec": {"request": request, "deadlineSeconds": model.deadline_seconds}}

    def _name_task(self, trace: Trace, task_id: str) -> None:
        trace.headers.append((self._task_id_header, task_id.encode()))


def _check_money(account: AccountRecord, answer: AdmissionAnswer, micros: int) -> None:
    if answer.stale and not account.unlimited:
        raise Unavailable("The account's balance is being recounted.")
    if answer.underfunded:
        raise InsufficientBalance(
            f"The balance does not cover this call, which reserves {to_decimal_text(micros)} USD."
        )
