"""`/api/v1/tasks`: the account's tasks of the last 30 days.

`surfaces.tasks` has creates, polls and cancellations, whose paths follow the catalog.
"""

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field

from gateway_apiserver.access import ByCaller, provided, requires
from gateway_apiserver.routes import GatewayRoute
from gateway_apiserver.surfaces.models import Limit, Text
from gateway_apiserver.surfaces.models import Query as KnownQuery
from gateway_core.admission.admission import Access
from gateway_core.kube.lists import find_position
from gateway_core.tasks.finder import TaskFinder
from gateway_core.tasks.history import TaskFilter, TaskHistory
from gateway_core.tasks.rows import ListedTask, TaskStatus, describe_row

LIST_PATH = "/api/v1/tasks"
router = APIRouter(prefix=LIST_PATH, route_class=GatewayRoute, tags=["Tasks"])

Tasks = Annotated[TaskHistory, Depends(provided(TaskHistory))]
Finder = Annotated[TaskFinder, Depends(provided(TaskFinder))]


class TaskQuery(KnownQuery):
    """Which tasks a list shows, and from where on."""

    limit: Limit = 20
    after: Annotated[Text | None, Field(description="Id of the last task of the page before.")] = (
        None
    )
    status: TaskStatus | None = None
    model: Annotated[Text | None, Field(description="Id of a model.")] = None


class TaskList(BaseModel):
    """A page of tasks."""

    data: list[ListedTask]
    has_more: bool
    last_id: str | None = Field(
        description="Where the next page begins. A page of a rare status or model may be shorter"
        " than its limit, or empty, while there are more."
    )


@router.get("", operation_id="listTasks", summary="Tasks of the last 30 days, the newest first")
@requires(Access(), "task_list")
async def list_tasks(
    query: Annotated[TaskQuery, Query()], caller: ByCaller, tasks: Tasks, finder: Finder
) -> TaskList:
    """List a page of the account's tasks."""
    after = None
    if query.after is not None:
        after = find_position(await finder.show(caller.account, query.after))
    wanted = TaskFilter(query.status, query.model)
    page = await tasks.read_page(caller.account, after=after, limit=query.limit, wanted=wanted)
    return TaskList(
        data=[describe_row(row) for row in page.rows],
        has_more=page.has_more,
        last_id=page.last_id,
    )
