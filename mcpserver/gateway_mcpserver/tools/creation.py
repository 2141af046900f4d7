"""The tool that creates a task: the same admission, task and charge as by REST (contract §2)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import orjson
from pydantic import Field

from gateway_core.accounts.authentication import check_act
from gateway_core.accounts.roles import Act
from gateway_core.admission.admission import Admission, Payer
from gateway_core.api.errors import NotFound, TooLarge, Unavailable
from gateway_core.api.oauth import Scope
from gateway_core.egress.addresses import AddressPolicy
from gateway_core.fair_semaphore import FairSemaphore
from gateway_core.providers.catalog_view import CatalogView
from gateway_core.providers.suggestions import suggest_operations
from gateway_core.tasks.creation import PreparedTask, TaskService
from gateway_core.tasks.drafts import draft_values
from gateway_core.tasks.finder import TaskFinder, TaskRecord
from gateway_core.tasks.operations import MAX_BODY_BYTES
from gateway_core.tasks.rendering import render_processing
from gateway_core.tasks.rows import TaskStatus
from gateway_core.tasks.validation import to_canonical_json
from gateway_core.validation import Whole, refuse_fields, validate
from gateway_mcpserver.tools.models import ListModels
from gateway_mcpserver.tools.tasks import ActionName, ServiceName
from gateway_mcpserver.tools.tool import (
    MOST_NAME_CHARACTERS,
    Arguments,
    Output,
    Tool,
    ToolCall,
)

MOST_WAIT_MS = 300_000
LEAST_POLL_MS = 1000
USUAL_POLL_MS = 5000
MOST_KEY_CHARACTERS = 512
CREATES_AT_ONCE, ACCOUNT_CREATES = 32, 24
"""Creates that the process works on at a time: the limits of their reads and writes are seconds,
which hundreds at once would exceed by waiting for each other."""
CREATE_WAIT_SECONDS = 60.0


class CreateTaskArguments(Arguments):
    """Arguments of `create_task`."""

    service: ServiceName
    action: ActionName
    model: Annotated[
        str | None,
        Field(
            max_length=MOST_NAME_CHARACTERS,
            description="Id of the model; required unless params name it.",
        ),
    ] = None
    params: Annotated[
        dict[str, Any], Field(description="Params of the task, as get_model_info shows them.")
    ] = Field(default_factory=dict, json_schema_extra={"default": {}})
    idempotency_key: Annotated[
        str,
        Field(
            min_length=1,
            max_length=MOST_KEY_CHARACTERS,
            description="Names this task: a call with the same key and input returns the same task"
            " and costs nothing more. Use it again after a time-out.",
            json_schema_extra={"pattern": r"\S"},
        ),
    ]
    wait: Annotated[bool, Field(description="Whether to wait until the task has ended.")] = True
    timeout_ms: Annotated[
        int | None,
        Whole,
        Field(
            ge=1,
            le=MOST_WAIT_MS,
            description=f"How long to wait; {MOST_WAIT_MS} by default.",
        ),
    ] = None
    poll_interval_ms: Annotated[
        int | None,
        Whole,
        Field(
            ge=LEAST_POLL_MS,
            description=f"How often to report progress; {USUAL_POLL_MS} by default.",
        ),
    ] = None


class CreatedTask(Output):
    """Output of `create_task`."""

    omitted: ClassVar[frozenset[str]] = frozenset(
        {"task_replayed", "result", "task", "wait_deadline_reached", "wait_degraded", "next_action"}
    )

    task_id: str
    status: TaskStatus
    completed: bool = Field(description="Whether the task has ended, also if it has failed.")
    task_replayed: bool | None = Field(
        default=None, description="True if an earlier call with the key made the task."
    )
    result: dict[str, Any] | None = Field(default=None, description="The task, if it has ended.")
    task: dict[str, Any] | None = Field(default=None, description="The task, if it has not ended.")
    wait_deadline_reached: bool | None = None
    wait_degraded: Literal["concurrency_limit"] | None = Field(
        default=None, description="Why the call did not wait."
    )
    next_action: Literal["get_task"] | None = None


@dataclass(frozen=True, slots=True)
class PendingTask:
    """A task whose end its call waits for; `seconds` and `interval` are seconds."""

    task_id: str
    account: str
    replayed: bool
    seconds: float
    interval: float


class CreateTask(Tool[CreateTaskArguments]):
    """Makes a task, or finds the one of an earlier call with the key."""

    name = "create_task"
    title = "Create a task"
    description = (
        "Creates a task of a model, which costs money, and by default waits for its result."
        " If it takes longer than the wait, call get_task later, or this tool again with the same"
        " idempotency_key, which costs nothing more."
    )
    scope: ClassVar[Scope] = "mcp:tasks"
    paid: ClassVar[bool] = True
    arguments = CreateTaskArguments
    output = CreatedTask
    annotations: ClassVar[Mapping[str, bool]] = {
        "readOnlyHint": False,
        "destructiveHint": False,
        "idempotentHint": True,
        "openWorldHint": True,
    }

    def __init__(
        self,
        catalog: CatalogView,
        admission: Admission,
        tasks: TaskService,
        finder: TaskFinder,
        addresses: AddressPolicy,
        *,
        most_seconds: float,
    ) -> None:
        self._catalog = catalog
        self._admission = admission
        self._tasks = tasks
        self._finder = finder
        self._addresses = addresses
        self._most_seconds = most_seconds
        self._creates = FairSemaphore(
            CREATES_AT_ONCE, alone=ACCOUNT_CREATES, seconds=CREATE_WAIT_SECONDS, error=_refuse
        )

    async def call(self, arguments: Mapping[str, Any], call: ToolCall) -> CreatedTask | PendingTask:
        """Return the task, to be waited for if the call says so. Raises as a create by REST.

        Arguments are validated within admission: a bad call counts as REST's 400 does (§12.1).
        """
        context = call.context
        check_act(Act.CREATE, call.caller.principal)
        context.caller = call.caller.principal
        payer = await self._admission.authenticate((), context)
        given: CreateTaskArguments | None = None

        async def prepare() -> PreparedTask:
            nonlocal given
            given = validate(self.arguments, arguments)
            return await self._prepare(payer, given, call)

        async with self._creates.take(call.account):
            made = await self._tasks.create(payer, context, prepare())
        assert given is not None, "its problem was raised"
        context.outcome = "replayed" if made.replayed else "created"
        pending = PendingTask(
            made.task_id,
            call.account,
            made.replayed,
            min((given.timeout_ms or MOST_WAIT_MS) / 1000, self._most_seconds),
            (given.poll_interval_ms or USUAL_POLL_MS) / 1000,
        )
        if given.wait:
            return pending
        record = await self._finder.find(call.account, made.task_id) if made.replayed else None
        return describe_created(pending, record)

    async def _prepare(
        self, payer: Payer, given: CreateTaskArguments, call: ToolCall
    ) -> PreparedTask:
        operation = self._catalog.current.find_task_operation(given.service, given.action)
        if operation is None:
            hint = suggest_operations(
                self._catalog.current, given.service, given.action, payer.policy.allows
            )
            raise NotFound(
                f"There is no task {given.service}/{given.action}.{hint}"
                " list_models shows what there is."
            )
        values = _join_model(given)
        try:
            size = len(to_canonical_json(values))
        except orjson.JSONEncodeError:
            # it writes fewer levels than it reads
            raise refuse_fields({"params": ["are nested too deeply"]}) from None
        if size > MAX_BODY_BYTES:
            raise TooLarge(f"The params must have at most {MAX_BODY_BYTES} bytes.")
        key = given.idempotency_key.strip()
        if not key:
            raise refuse_fields({"idempotency_key": ["must not be blank"]})
        draft = draft_values(
            self._catalog.current,
            operation,
            given.service,
            values,
            self._addresses,
            ListModels.name,
        )
        return await self._tasks.prepare(payer, call.context, given.service, draft, key)


def _refuse() -> Unavailable:
    return Unavailable("Too many tasks are being created.")


def _join_model(given: CreateTaskArguments) -> dict[str, Any]:
    """Return the body of the same call by REST. InvalidRequest where two models are named."""
    named = given.params.get("model")
    if given.model is None:
        return given.params
    if named is not None and named != given.model:
        raise refuse_fields({"model": ["differs from the model in params"]})
    return {**given.params, "model": given.model}


def describe_created(pending: PendingTask, record: TaskRecord | None, **facts: Any) -> CreatedTask:
    """Return the output for a task as it is; `facts` say why the call no longer waits."""
    replayed = True if pending.replayed else None
    if record is not None and record.terminal is not None:
        result = orjson.loads(record.terminal)
        return CreatedTask(
            task_id=pending.task_id,
            status=result["status"],
            completed=True,
            task_replayed=replayed,
            result=result,
        )
    return CreatedTask(
        task_id=pending.task_id,
        status="processing",
        completed=False,
        task_replayed=replayed,
        task=orjson.loads(render_processing(pending.task_id)),
        next_action="get_task",
        **facts,
    )
