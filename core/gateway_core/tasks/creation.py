"""Task creates: replay by Idempotency-Key, price, hold and object (contract §2.1, §2.2)."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog

from gateway_core.admission.admission import Admission, Payer, capture
from gateway_core.admission.context import CallContext
from gateway_core.api.errors import (
    GatewayError,
    Internal,
    KeyReused,
    OutcomeUnknown,
    Unavailable,
    WinnerUndecided,
)
from gateway_core.api.ids import (
    ACCOUNT_LABEL,
    CREATED_ANNOTATION,
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
from gateway_core.api.resource import Object, skeleton
from gateway_core.api.task import GatewayTask
from gateway_core.api.times import format_precise_time
from gateway_core.billing.counters import Hold
from gateway_core.failpoints import Failpoints
from gateway_core.kube.api_health import ApiHealth
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.clock import CLOCK
from gateway_core.kube.errors import (
    AlreadyExists,
    KubernetesError,
    KubernetesUnavailable,
    WriteOutcomeUnknown,
)
from gateway_core.kube.informer import Cache
from gateway_core.kube.retries import attempts
from gateway_core.observability.tracing import SpanKind
from gateway_core.providers.catalog import Model
from gateway_core.storage.limits import INPUT_SECONDS, StoreTimeout
from gateway_core.storage.objects import ObjectStore, StoreUnavailable
from gateway_core.tasks.archive import store_input
from gateway_core.tasks.drafts import Draft, find_model, price_draft, to_input
from gateway_core.tasks.finder import TaskFinder

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The id of an accepted task, and whether an earlier call created it."""

    task_id: str
    replayed: bool


@dataclass(frozen=True, slots=True)
class PreparedTask:
    """A task that a call asks for. `model` and `hold` are None if the task exists already.

    `key` is the Idempotency-Key: any of the calls that have it may create the task.
    """

    task_id: str
    service: str
    draft: Draft
    key: str | None
    model: Model | None = None
    hold: Hold | None = None


@dataclass(frozen=True, slots=True)
class Recorded:
    """The task object, and whether another call created it."""

    object: Object
    replayed: bool


class TaskRecorder:
    """Creates task objects."""

    def __init__(self, kube: KubernetesClient, api_health: ApiHealth) -> None:
        self._kube = kube
        self._api_health = api_health

    async def record(self, obj: Object) -> Recorded:
        """Create `obj`, or get the object of its name that an equal call created.

        Raises:
            KeyReused: the object of its name is of a different call.
            WinnerUndecided: an object of its name exists, and could not be read within 10 s.
            OutcomeUnknown: sent and not acknowledged within 10 s; it may exist.
            Unavailable: the Kubernetes API is away, and nothing was sent.
            Internal: the Kubernetes API rejects the object, a defect of the gateway.
        """
        unsent = True

        @asynccontextmanager
        async def observe() -> AsyncIterator[None]:
            nonlocal unsent
            if unsent:
                await self._check()
            try:
                async with self._api_health.listen():
                    yield
            except KubernetesUnavailable:
                raise
            except BaseException:
                unsent = False
                raise

        try:
            stands, is_new = await self._kube.create_or_get(GatewayTask.plural, obj, around=observe)
        except WriteOutcomeUnknown as error:
            raise OutcomeUnknown(
                "The task was not acknowledged in time; it may have been created."
            ) from error
        except AlreadyExists as error:
            raise WinnerUndecided from error
        except KubernetesUnavailable as error:
            raise Unavailable("The task could not be recorded.", retry_after=1) from error
        except KubernetesError as error:
            _log.error("a task was rejected", task=obj["metadata"]["name"], error=str(error))
            raise Internal("The task could not be recorded.") from error
        if is_new:
            return Recorded(stands, replayed=False)
        given = obj["metadata"]["annotations"][GIVEN_DIGEST_ANNOTATION]
        if is_same_request(stands, given, obj["spec"]["request"]["fingerprint"]):
            return Recorded(stands, replayed=True)
        raise KeyReused

    async def _check(self) -> None:
        """Keeps the outcome known where the API does not answer: nothing is sent then."""
        try:
            await self._api_health.check()
        except Unavailable as error:
            raise KubernetesUnavailable(str(error)) from error


def is_same_request(obj: Object, given_digest: str, fingerprint: str) -> bool:
    """Return whether the task was made by a call with the same validated body (contract §2.2).

    Same with today's defaults, or same as it was sent: what the model says by now is no difference.
    """
    annotations = obj["metadata"].get("annotations") or {}
    return bool(
        annotations.get(GIVEN_DIGEST_ANNOTATION) == given_digest
        or obj["spec"]["request"].get("fingerprint") == fingerprint
    )


class TaskService:
    """Creates tasks: replay by Idempotency-Key, price, reservation, object."""

    def __init__(
        self,
        *,
        admission: Admission,
        finder: TaskFinder,
        recorder: TaskRecorder,
        tasks: Cache[Any],
        store: ObjectStore,
        mint: IdMint,
        failpoints: Failpoints,
        clock: Callable[[], datetime] = CLOCK.now,
    ) -> None:
        self._admission = admission
        self._finder = finder
        self._recorder = recorder
        self._tasks = tasks
        self._store = store
        self._store_timeout = StoreTimeout(INPUT_SECONDS)
        self._mint = mint
        self._failpoints = failpoints
        self._clock = clock

    async def prepare(
        self, payer: Payer, context: CallContext, service: str, draft: Draft, key: str | None
    ) -> PreparedTask:
        """Return the task of a draft: one that exists, or a new one with its price.

        Raises KeyReused, InvalidRequest for an unknown model, Forbidden, Conflict, Unavailable.
        """
        account = payer.account.name
        if key is None:
            task_id = self._mint.mint_random(TASK_PREFIX, account)
        else:
            path = f"/api/v1/{service}/{draft.operation.action}"
            task_id = self._mint.mint_keyed(TASK_PREFIX, account, path, key)
            found = await self._finder.find_object(account, id_to_name(task_id))
            if found is not None:
                context.task = task_id
                if is_same_request(found, draft.given_digest, draft.digest):
                    return PreparedTask(task_id, service, draft, key)
                raise KeyReused
        model = find_model(draft, service, payer.policy.allows)
        payer.policy.check(service, draft.model_id)
        micros = price_draft(draft, model, self._clock())
        hold = payer.make_hold(id_to_name(task_id), micros)
        return PreparedTask(task_id, service, draft, key, model, hold)

    async def create(
        self, payer: Payer, context: CallContext, preparing: Awaitable[PreparedTask]
    ) -> Acceptance:
        """Admit the task that `preparing` comes to, by `prepare`, and create it or find it.

        `payer` is authenticated. Raises as `Admission.reserve` does, with the problem of
        `preparing`; KeyReused, WinnerUndecided, OutcomeUnknown, Unavailable, Internal. The id of
        the task is in `context` as soon as it may exist.
        """
        task, problem = await capture(preparing)
        try:
            hold = None if task is None else task.hold
            await self._admission.reserve(payer, context, hold, problem)
            assert task is not None, "its problem was raised"
        except WinnerUndecided:
            if task is None:
                raise
            task = await self._await_winner(payer, context, task)
        return await self._create_or_get(payer, context, task)

    async def _await_winner(
        self, payer: Payer, context: CallContext, task: PreparedTask
    ) -> PreparedTask:
        """Return the task, its money reserved, once the other call with its key has ended.

        That call has another price for the same name. As a rule its task is found, and replayed or
        refused (§2.2). Raises WinnerUndecided after 10 s.
        """
        async for _ in attempts():
            task = await self.prepare(payer, context, task.service, task.draft, task.key)
            try:
                await self._admission.reserve(payer, context, task.hold, counts=False)
            except WinnerUndecided:
                continue
            return task
        raise WinnerUndecided

    async def _create_or_get(
        self, payer: Payer, context: CallContext, task: PreparedTask
    ) -> Acceptance:
        """Return the task of a reservation; never before its object is acknowledged.

        Raises KeyReused, WinnerUndecided, OutcomeUnknown, Unavailable, Internal.
        """
        context.task = task.task_id
        if task.hold is None:
            return Acceptance(task.task_id, replayed=True)
        try:
            obj = await self._compose(payer, context, task)
            self._failpoints.reach("before-create")
            with context.span.child("record", kind=SpanKind.CLIENT):
                recorded = await self._recorder.record(obj)
            self._failpoints.reach("after-create")
        except GatewayError as error:
            # The hold stays where the task may exist, made by this call or by another with the same
            # Idempotency-Key: then the task needs it, and else the sweeper ends it.
            if task.key is None and not isinstance(error, OutcomeUnknown | WinnerUndecided):
                await self._admission.release(payer, task.hold)
            raise
        self._tasks.upsert(recorded.object)
        return Acceptance(task.task_id, recorded.replayed)

    async def _compose(self, payer: Payer, context: CallContext, task: PreparedTask) -> Object:
        assert task.model is not None
        assert task.hold is not None
        draft, account, name = task.draft, payer.account.name, task.hold.task
        try:
            # one key for each body: another call may store other input for the same name
            async with self._store_timeout.bound():
                stored = await store_input(
                    self._store, account, f"{name}-{draft.digest[:16]}", to_input(draft)
                )
        except StoreUnavailable as error:
            raise Unavailable("The task's input could not be stored.") from error
        request: dict[str, Any] = {
            "accountName": account,
            "keyName": payer.policy.key_name,
            "service": task.service,
            "action": draft.operation.action,
            "modelId": draft.model_id,
            **stored,
            "fingerprint": draft.digest,
            "reservedMicros": task.hold.micros,
        }
        if task.model.keyed_route is not None:
            request["route"] = task.model.keyed_route.model_dump(by_alias=True)
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
                REQUEST_ID_ANNOTATION: context.request_id,
                CREATED_ANNOTATION: format_precise_time(CLOCK.now()),
                GIVEN_DIGEST_ANNOTATION: draft.given_digest,
                **_name_trace(context),
            },
            finalizers=[TASK_FINALIZER],
        )
        return {
            **head,
            "spec": {"request": request, "deadlineSeconds": task.model.deadline_seconds},
        }


def _name_trace(context: CallContext) -> dict[str, str]:
    """Return the annotation by which the task's later spans join the request's trace."""
    trace = context.span.context
    return {} if trace is None else {TRACEPARENT_ANNOTATION: str(trace)}
