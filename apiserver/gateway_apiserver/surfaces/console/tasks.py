"""Tasks of the account: the list, one task with its videos and callback, and redelivery."""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import orjson

from gateway_apiserver.endpoints import Call
from gateway_apiserver.surfaces.console.parts import (
    BEING_READ,
    NOTHING,
    Cell,
    Facts,
    Field,
    Form,
    Head,
    Hint,
    Notice,
    Part,
    Region,
    Screen,
    Table,
    Videos,
    at,
    locate,
    number,
    numeric,
    show_micros,
    show_seconds,
    state,
)
from gateway_apiserver.surfaces.console.seats import (
    Console,
    Seat,
    Section,
    Values,
    read_choice,
    read_query,
)
from gateway_apiserver.surfaces.console.snippets import show_task
from gateway_apiserver.surfaces.pages.html import redirect
from gateway_apiserver.surfaces.validation import refuse_fields
from gateway_core.accounts.roles import Act
from gateway_core.api.ids import name_to_id
from gateway_core.api.resource import Object
from gateway_core.api.task import GatewayTask
from gateway_core.kube.kinds import TASKS
from gateway_core.kube.repository import Repository
from gateway_core.kube.row_index import RowIndex, RowPage
from gateway_core.storage.objects import ObjectStore, StoreUnavailable
from gateway_core.tasks.archive import InputDamaged, load_input
from gateway_core.tasks.delivery import request_redelivery
from gateway_core.tasks.finder import TaskFinder
from gateway_core.tasks.rows import TaskRow, count_seconds
from gateway_web.responses import Response

PHASES: Mapping[str, str] = {
    "": "Any",
    "Submitting": "Submitting",
    "Running": "Running",
    "Completed": "Completed",
    "Failed": "Failed",
}
PER_PAGE = 20
MOST_SHOWN_INPUT = 20_000
_MODEL = re.compile(r"[A-Za-z0-9._:/@-]{1,253}", re.A)


class TaskPages:
    """List and detail."""

    def __init__(
        self,
        console: Console,
        index: RowIndex[TaskRow],
        finder: TaskFinder,
        repository: Repository,
        store: ObjectStore,
        base_url: str,
    ) -> None:
        self._base_url = base_url
        self._index = index
        self._finder = finder
        self._repository = repository
        self._store = store
        console.add_section(Section("Tasks", "/tasks"))
        console.add_page("/tasks", self.show_list, "tasks")
        one = "/tasks/{task_id}"
        console.add_page(one, self.show, "task")
        console.add_form(one + "/redeliver", self.redeliver, "redeliver", self.show)

    async def show_list(self, call: Call, seat: Seat) -> Screen | Response:
        """A page of tasks, or the one that was searched for."""
        query = read_query(call)
        path = f"{seat.home}/tasks"
        wanted = query.get("id", "").strip()
        if wanted:
            # the id of a task is checked where it is shown
            return redirect(f"{path}/{wanted if re.fullmatch('[a-z0-9_-]+', wanted) else '-'}")
        phase = read_choice(query, "phase", PHASES)
        model, after = (query.get(name, "").strip() for name in ("model", "after"))
        if model and not _MODEL.fullmatch(model):
            raise refuse_fields({"model": ["must be the id of a model"]})
        page = await self._index.read_page(
            seat.account.name,
            after=after,
            limit=PER_PAGE,
            matches=lambda row: phase in ("", row.phase) and model in ("", row.model),
        )
        chosen = {"phase": phase, "model": model}
        search = Form(
            path,
            "Show",
            (
                Field("phase", "State", "select", phase, options=[*PHASES.items()]),
                Field("model", "Model", "search", model),
            ),
            filters=True,
        )
        hint = "Any task of the last 30 days"
        find = Form(path, "Open", (Field("id", "Task id", "search", hint=hint, required=True),))
        empty = "No task matches." if phase or model else "There are no tasks yet."
        table = replace(
            tabulate_tasks(seat, page, "Tasks", empty=empty),
            more=locate(path, **chosen, after=page.more) if page.more else "",
            first=locate(path, **chosen) if after else "",
        )
        text = "Open tasks, and tasks that ended in the last hour. Open an older task by its id."
        region = Region([table], locate(path, **chosen, after=after), f"{seat.home}/events/tasks")
        return Screen("Tasks", [search, region, find, Hint(text)])

    async def show(self, call: Call, seat: Seat) -> Screen:
        """One task."""
        wire_id = call.scope["path_params"]["task_id"]
        obj = await self._finder.show(seat.account.name, wire_id)
        request, status = obj["spec"]["request"], obj.get("status") or {}
        path = f"{seat.home}/tasks/{wire_id}"
        parts: list[Part] = [Facts(_describe(obj))]
        failure = status.get("failure")
        if failure:
            text = failure.get("message") or "The task failed."
            parts.append(Notice(f"{failure.get('code', 'failed')}: {text}", is_problem=True))
        videos = (status.get("result") or {}).get("videos") or ()
        if videos:
            parts.append(Videos([video["url"] for video in videos]))
        if request.get("callbackUrl"):
            parts.append(_describe_callback(request, status))
            if seat.may(Act.CREATE) and status.get("phase") in ("Completed", "Failed"):
                action = f"{path}/redeliver"
                text = "The receiver gets the same id and the same body once more."
                button = "Deliver the callback again"
                parts.append(Form(action, button, token=seat.sign(action), text=text))
        body = await self._read_input(obj)
        url = f"{self._base_url}/api/v1/{request['service']}/{request['action']}"
        code = show_task(url, body)
        if len(code[0].text) > MOST_SHOWN_INPUT:
            code = [replace(code[0], text=code[0].text[:MOST_SHOWN_INPUT] + "…")]
        region = Region(parts, path, f"{seat.home}/events/tasks")
        return Screen(wire_id, [region, *code], back=("Tasks", f"{seat.home}/tasks"))

    async def redeliver(self, call: Call, seat: Seat, _: Values) -> Response:
        """Have the callback delivered once more."""
        seat.require(Act.CREATE)
        wire_id = call.scope["path_params"]["task_id"]
        await self._repository.change(TASKS, seat.account.name, wire_id, request_redelivery)
        return redirect(f"{seat.home}/tasks/{wire_id}?done=redelivered")

    async def _read_input(self, obj: Object) -> dict[str, Any]:
        request = obj["spec"]["request"]
        found: Any = {}
        with suppress(orjson.JSONDecodeError, InputDamaged, StoreUnavailable, KeyError):
            if "input" in request:
                found = orjson.loads(request["input"])
            else:
                parsed = GatewayTask.model_validate(obj).spec.request
                found = await load_input(self._store, parsed)
        callback = {"callback_url": request["callbackUrl"]} if "callbackUrl" in request else {}
        return {"model": request["modelId"], **found, **callback}


def tabulate_tasks(
    seat: Seat,
    page: RowPage[TaskRow],
    label: str,
    *,
    empty: str = "There are no tasks yet.",
    is_titled: bool = False,
) -> Table:
    """Tasks as rows."""
    heads = (
        Head("Task"),
        Head("Model"),
        Head("State"),
        Head("Created"),
        numeric("Took"),
        numeric("Cost"),
        Head("Callback"),
    )
    rows = []
    for row in page.rows:
        wire_id = name_to_id(row.name)
        rows.append(
            [
                Cell(wire_id, "code", f"{seat.home}/tasks/{wire_id}"),
                Cell(row.model),
                state(row.phase),
                at(row.created),
                number(show_seconds(row.seconds)),
                number(show_micros(row.micros)),
                state(row.callback) if row.callback else Cell(NOTHING),
            ]
        )
    return Table(label, heads, rows, empty if page.is_read else BEING_READ, is_titled=is_titled)


def _describe(obj: Object) -> list[tuple[str, Cell]]:
    request, status = obj["spec"]["request"], obj.get("status") or {}
    reserved = status.get("reservedMicros") or request.get("reservedMicros")
    key = request.get("keyName")
    created, ended = obj["metadata"]["creationTimestamp"], status.get("completionTime") or ""
    return [
        ("State", state(status.get("phase") or "Accepted")),
        ("Model", Cell(request["modelId"])),
        ("Created", at(created)),
        ("Started", at(status.get("startTime"))),
        ("Ended", at(ended)),
        ("Took", Cell(show_seconds(count_seconds(created, ended)))),
        ("Cost", Cell(show_micros(status.get("chargedMicros")))),
        ("Reserved", Cell(show_micros(reserved))),
        ("Key", Cell(name_to_id(key) if key else NOTHING, "code")),
    ]


def _describe_callback(request: Mapping[str, Any], status: Mapping[str, Any]) -> Facts:
    callback = status.get("callback") or {}
    items = [
        ("Address", Cell(request["callbackUrl"], "code")),
        ("State", state(callback.get("state") or "Waiting for the end")),
        ("Attempts", Cell(str(callback.get("attempts", 0)))),
        ("Last attempt", at(callback.get("lastAttemptTime"))),
        ("Last answer", Cell(callback.get("lastAnswer") or NOTHING)),
        ("Next attempt", at(callback.get("nextAttemptTime"))),
        ("Message id", Cell(callback.get("id") or NOTHING, "code")),
    ]
    return Facts(items, "Callback")
