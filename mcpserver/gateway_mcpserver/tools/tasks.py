"""Tools for tasks that exist: show, cancel and list (contract §2)."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import orjson
from pydantic import Field

from gateway_core.accounts.authentication import check_act
from gateway_core.accounts.roles import Act
from gateway_core.api.oauth import Scope
from gateway_core.kube.lists import find_position
from gateway_core.tasks.cancellation import TaskCancellation
from gateway_core.tasks.finder import TaskFinder, TaskRecord, unknown_task
from gateway_core.tasks.history import TaskFilter, TaskHistory
from gateway_core.tasks.rendering import render_processing
from gateway_core.tasks.rows import ListedTask, TaskStatus, describe_row
from gateway_core.validation import Whole
from gateway_mcpserver.tools.tool import (
    MOST_NAME_CHARACTERS,
    Arguments,
    Output,
    ReadingTool,
    ToolCall,
)

ServiceName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MOST_NAME_CHARACTERS,
        description="Service, as list_models shows it.",
    ),
]
ActionName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MOST_NAME_CHARACTERS,
        description="Action, as list_models shows it.",
    ),
]


class TaskPlace(Arguments):
    """The place of a task: arguments of `get_task` and `cancel_task`."""

    service: ServiceName
    action: ActionName
    task_id: Annotated[
        str,
        Field(min_length=1, max_length=MOST_NAME_CHARACTERS, description="Id from create_task."),
    ]


class ShownTask(Output):
    """Output of `get_task`."""

    task_id: str
    status: TaskStatus
    task: dict[str, Any] = Field(description="The task; with its videos once it has completed.")


class GetTask(ReadingTool[TaskPlace]):
    """A task as it is (contract §2.3)."""

    name = "get_task"
    title = "Show a task"
    description = "Shows the status of a task, and its result once it has ended."
    scope: ClassVar[Scope] = "mcp:tasks"
    arguments = TaskPlace
    output = ShownTask

    def __init__(self, finder: TaskFinder) -> None:
        self._finder = finder

    async def run(self, given: TaskPlace, call: ToolCall) -> ShownTask:
        """Return the task. NotFound, Unavailable."""
        record = await self._finder.find(call.account, given.task_id)
        if record.service != given.service or record.action != given.action:
            raise unknown_task()
        call.context.task = given.task_id
        return _show(given.task_id, record)


class CancelTask(ReadingTool[TaskPlace]):
    """Ends a task early (contract §2.3)."""

    name = "cancel_task"
    title = "Cancel a task"
    description = (
        "Ends a task early, for good. It is processing until the provider has stopped, and then"
        " failed; a task that was not billed costs nothing. Repeating the call is harmless."
    )
    scope: ClassVar[Scope] = "mcp:tasks"
    arguments = TaskPlace
    output = ShownTask
    annotations: ClassVar[Mapping[str, bool]] = {
        "readOnlyHint": False,
        "destructiveHint": True,
        "idempotentHint": True,
        "openWorldHint": True,
    }

    def __init__(self, cancellation: TaskCancellation) -> None:
        self._cancellation = cancellation

    async def run(self, given: TaskPlace, call: ToolCall) -> ShownTask:
        """Cancel the task. Forbidden, NotFound, Conflict, Unavailable, OutcomeUnknown."""
        check_act(Act.CREATE, call.caller.principal)
        record = await self._cancellation.cancel(
            call.account, given.task_id, given.service, given.action
        )
        call.context.task = given.task_id
        return _show(given.task_id, record)


def _show(task_id: str, record: TaskRecord) -> ShownTask:
    task = orjson.loads(record.terminal or render_processing(task_id))
    return ShownTask(task_id=task_id, status=task["status"], task=task)


class ListTasksArguments(Arguments):
    """Arguments of `list_tasks`."""

    status: Annotated[TaskStatus | None, Field(description="Only tasks of this status.")] = None
    model: Annotated[
        str | None,
        Field(
            min_length=1, max_length=MOST_NAME_CHARACTERS, description="Only tasks of this model."
        ),
    ] = None
    limit: Annotated[int, Whole, Field(ge=1, le=100)] = 20
    after: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=MOST_NAME_CHARACTERS,
            description="The last_id of the page before.",
        ),
    ] = None


class ListedTasks(Output):
    """Output of `list_tasks`."""

    tasks: list[ListedTask]
    has_more: bool
    last_id: str | None


class ListTasks(ReadingTool[ListTasksArguments]):
    """The account's tasks."""

    name = "list_tasks"
    title = "List tasks"
    description = (
        "Lists the account's tasks of the last 30 days, the newest first, with their status, cost"
        " and error; get_task shows a result."
    )
    scope: ClassVar[Scope] = "mcp:tasks"
    arguments = ListTasksArguments
    output = ListedTasks

    def __init__(self, history: TaskHistory, finder: TaskFinder) -> None:
        self._history = history
        self._finder = finder

    async def run(self, given: ListTasksArguments, call: ToolCall) -> ListedTasks:
        """Return a page of tasks. NotFound, Unavailable."""
        after = None
        if given.after is not None:
            after = find_position(await self._finder.show(call.account, given.after))
        page = await self._history.read_page(
            call.account,
            after=after,
            limit=given.limit,
            wanted=TaskFilter(given.status, given.model),
        )
        return ListedTasks(
            tasks=[describe_row(row) for row in page.rows],
            has_more=page.has_more,
            last_id=page.last_id,
        )
