"""Tasks of the account: the list, one task with its videos and callback, and redelivery."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import orjson

from gateway_apiserver.routing import Call
from gateway_apiserver.surfaces.console.parts import (
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
from gateway_apiserver.surfaces.console.seats import Console, Seat, Section, Values, read_query
from gateway_apiserver.surfaces.console.snippets import show_task
from gateway_apiserver.surfaces.console.task_index import TaskIndex
from gateway_apiserver.surfaces.pages.html import redirect
from gateway_core.accounts.roles import Act
from gateway_core.api.errors import InvalidRequest
from gateway_core.api.ids import name_to_id
from gateway_core.api.resource import Object
from gateway_core.api.task import GatewayTask
from gateway_core.api.times import parse_time
from gateway_core.kube.lists import Position, find_position
from gateway_core.kube.repository import TASKS, Repository
from gateway_core.storage.objects import ObjectStore, StoreUnavailable
from gateway_core.tasks.archive import InputDamaged, load_input
from gateway_core.tasks.delivery import request_redelivery
from gateway_core.tasks.finder import TaskFinder
from gateway_web.responses import Response

PHASES: Mapping[str, str] = {
    "": "Any",
    "Submitting": "Submitting",
    "Running": "Running",
    "Completed": "Completed",
    "Failed": "Failed",
}
PER_PAGE = 20
MOST_STEPS = 3
"""Reads of a page's worth of tasks for one page, whose filter leaves some out."""
MOST_SHOWN_INPUT = 20_000
_CURSOR = re.compile(r"(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z)~(\d{1,20})~([a-z0-9-]{1,63})", re.A)
_MODEL = re.compile(r"[A-Za-z0-9._:/@-]{1,253}", re.A)


@dataclass(frozen=True, slots=True)
class TaskPage:
    """Whole tasks, the newest first, and the cursor of the next page."""

    objects: list[Object]
    more: str = ""


class TaskLists:
    """Pages of an account's tasks in the Kubernetes API: open ones, and recently ended ones."""

    def __init__(self, repository: Repository, index: TaskIndex) -> None:
        self._repository = repository
        self._index = index

    async def read_page(
        self, account: str, *, after: str = "", phase: str = "", model: str = "", limit: int
    ) -> TaskPage:
        """A page after a cursor. InvalidRequest, Unavailable."""
        if phase not in PHASES:
            raise InvalidRequest("There is no such state.")
        if model and not _MODEL.fullmatch(model):
            raise InvalidRequest("This is no id of a model.")
        position = _read_cursor(after) if after else None
        found = await self._search(account, position, phase, model, limit + 1)
        if found is None:
            # of many tasks few match: the API server finds them, and the list of them is short
            selector = f",status.phase={phase}" if phase else ""
            selector += f",spec.request.modelId={model}" if model else ""
            kind = replace(TASKS, selector=selector)
            names, _ = await self._repository.list_names(
                kind, account, after=position, limit=limit + 1, order="desc"
            )
            found = await self._repository.show_each(kind, account, names, lambda obj: obj)
        objects = found[:limit]
        has_more = len(found) > limit
        return TaskPage(objects, "~".join(map(str, find_position(objects[-1]))) if has_more else "")

    async def _search(
        self, account: str, position: Position | None, phase: str, model: str, limit: int
    ) -> list[Object] | None:
        """The newest tasks before a position that match; None where too few of those read do."""
        found: list[Object] = []
        for step_number in range(1, MOST_STEPS + 1):
            step = await self._index.list_before(account, position, limit)
            names = [name for _, _, name in step]
            read = await self._repository.show_each(TASKS, account, names, lambda obj: obj)
            there = {obj["metadata"]["name"]: obj for obj in read if _is_of(obj, account)}
            self._index.drop(account, {each for each in step if each[2] not in there})
            found += [obj for obj in there.values() if _matches(obj, phase, model)]
            if len(found) >= limit or len(step) < limit:
                return found[:limit]
            # at this rate of matches the steps that are left would not fill the page
            if MOST_STEPS * len(found) < step_number * limit:
                return None
            position = step[-1]
        return None


def _is_of(obj: Object, account: str) -> bool:
    """Whether a task is the account's and stays."""
    owner: str = obj["spec"]["request"]["accountName"]
    return owner == account and not obj["metadata"].get("deletionTimestamp")


def _matches(obj: Object, phase: str, model: str) -> bool:
    found = (obj.get("status") or {}).get("phase")
    return phase in ("", found) and model in ("", obj["spec"]["request"]["modelId"])


class TaskPages:
    """List and detail."""

    def __init__(
        self,
        console: Console,
        lists: TaskLists,
        finder: TaskFinder,
        repository: Repository,
        store: ObjectStore,
        base_url: str,
    ) -> None:
        self._base_url = base_url
        self._lists = lists
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
        phase, model, after = (query.get(name, "").strip() for name in ("phase", "model", "after"))
        page = await self._lists.read_page(
            seat.account.name, after=after, phase=phase, model=model, limit=PER_PAGE
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
            tabulate_tasks(seat, page.objects, "Tasks", empty=empty),
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
    objects: Sequence[Object],
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
    for obj in objects:
        wire_id = name_to_id(obj["metadata"]["name"])
        status = obj.get("status") or {}
        callback = (status.get("callback") or {}).get("state")
        rows.append(
            [
                Cell(wire_id, "code", f"{seat.home}/tasks/{wire_id}"),
                Cell(obj["spec"]["request"]["modelId"]),
                state(status.get("phase") or "Accepted"),
                at(obj["metadata"]["creationTimestamp"]),
                number(show_seconds(read_seconds(obj))),
                number(show_micros(status.get("chargedMicros"))),
                state(callback) if callback else Cell(NOTHING),
            ]
        )
    return Table(label, heads, rows, empty, is_titled=is_titled)


def read_seconds(obj: Object) -> float | None:
    """Seconds from the creation of a task to its end; None before."""
    ended = (obj.get("status") or {}).get("completionTime")
    if not ended:
        return None
    created = parse_time(obj["metadata"]["creationTimestamp"])
    return max(0.0, (parse_time(ended) - created).total_seconds())


def _describe(obj: Object) -> list[tuple[str, Cell]]:
    request, status = obj["spec"]["request"], obj.get("status") or {}
    reserved = status.get("reservedMicros") or request.get("reservedMicros")
    key = request.get("keyName")
    return [
        ("State", state(status.get("phase") or "Accepted")),
        ("Model", Cell(request["modelId"])),
        ("Created", at(obj["metadata"]["creationTimestamp"])),
        ("Started", at(status.get("startTime"))),
        ("Ended", at(status.get("completionTime"))),
        ("Took", Cell(show_seconds(read_seconds(obj)))),
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


def _read_cursor(text: str) -> Position:
    found = _CURSOR.fullmatch(text)
    if found is None:
        raise InvalidRequest("The address is malformed.")
    return found[1], int(found[2]), found[3]
