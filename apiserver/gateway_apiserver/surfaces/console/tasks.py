"""Tasks of the account: the list, one task with its videos and callback, and redelivery."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import orjson

from gateway_apiserver.endpoints import Call
from gateway_apiserver.surfaces.console.choices import choose_key, name_key
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
from gateway_core.accounts.records import AccountIndex, KeyRecord
from gateway_core.accounts.roles import Act
from gateway_core.api.conditions import ConditionType, Reason
from gateway_core.api.errors import Unavailable
from gateway_core.api.ids import TASK_PREFIX, id_to_name, name_to_id, read_id
from gateway_core.api.resource import Object
from gateway_core.api.task import PHASES, TERMINAL_PHASES, GatewayTask, name_phase
from gateway_core.api.times import format_time
from gateway_core.kube.kinds import TASKS
from gateway_core.kube.repository import Repository
from gateway_core.kube.row_index import PATIENCE_SECONDS, RowPage, read_cursor, write_cursor
from gateway_core.providers.catalog_view import CatalogView
from gateway_core.storage.objects import ObjectStore, StoreUnavailable
from gateway_core.tasks.archive import InputDamaged, load_input
from gateway_core.tasks.cancellation import TaskCancellation
from gateway_core.tasks.delivery import request_redelivery
from gateway_core.tasks.finder import TaskFinder
from gateway_core.tasks.history import TaskFilter, TaskHistory
from gateway_core.tasks.lifecycle import deadline
from gateway_core.tasks.operations import OPERATIONS
from gateway_core.tasks.rows import TaskRow, count_seconds
from gateway_web.responses import Response

STATES: Mapping[str, str] = {"": "Any", **{phase.lower(): phase for phase in PHASES}}
WAITS: Mapping[str, str] = {
    Reason.WAITING_FOR_PROVIDER: "its provider, which does not take calls now",
    Reason.WAITING_FOR_MODEL: "its model, which is not offered now",
    Reason.WAITING_FOR_LEDGER: "the account's money, which is being read",
    Reason.WAITING_FOR_STORE: "the store of files, which does not answer",
}
"""By reason; a condition's own message names Secrets, which are not the account's business."""
PER_PAGE = 20
MOST_SHOWN_INPUT = 20_000
_ID = re.compile(r"[A-Za-z0-9._:/@-]{1,253}", re.A)


class TaskPages:
    """List and detail."""

    def __init__(
        self,
        console: Console,
        finder: TaskFinder,
        history: TaskHistory,
        cancellation: TaskCancellation,
        repository: Repository,
        store: ObjectStore,
        catalog: CatalogView,
        keys: AccountIndex[KeyRecord],
        base_url: str,
    ) -> None:
        self._catalog = catalog
        self._keys = keys
        self._base_url = base_url
        self._finder = finder
        self._history = history
        self._cancellation = cancellation
        self._repository = repository
        self._store = store
        console.add_section(Section("Tasks", "/tasks"))
        console.add_page("/tasks", self.show_list, "tasks")
        one = "/tasks/{task_id}"
        console.add_page(one, self.show, "task")
        console.add_form(one + "/redeliver", self.redeliver, "redeliver", self.show)
        console.add_form(one + "/cancel", self.cancel, "task_cancel", self.show)

    async def show_list(self, call: Call, seat: Seat) -> Screen | Response:
        """Return a page of tasks, or the one that was searched for."""
        query = read_query(call)
        path = f"{seat.home}/tasks"
        wanted = read_id(TASK_PREFIX, query.get("id", "").strip())
        if wanted:
            # the id of a task is checked where it is shown
            return redirect(f"{path}/{wanted if re.fullmatch('[a-z0-9_-]+', wanted) else '-'}")
        status = read_choice(query, "status", STATES)
        names = ("model", "key", "text", "after")
        model, key, text, after = (query.get(name, "").strip() for name in names)
        for name, value in (("model", model), ("key", key)):
            if value and not _ID.fullmatch(value):
                raise refuse_fields({name: [f"must be the id of a {name}"]})
        page = await self._history.begin_page(
            seat.account.name,
            after=read_cursor(after) if after else None,
            limit=PER_PAGE,
            wanted=TaskFilter(
                model=model or None,
                key=id_to_name(key) or None,
                text=text or None,
                phase=STATES[status] if status else None,
            ),
            patience=PATIENCE_SECONDS,
        )
        chosen = {"status": status, "model": model, "key": key, "text": text}
        search = Form(
            path,
            "Show",
            (
                Field("status", "State", "select", status, options=[*STATES.items()]),
                Field("model", "Model", "search", model, options=self._list_models()),
                *self._choose_key(seat, key),
                Field("text", "Words of the prompt", "search", text),
            ),
            filters=True,
        )
        find = Form(path, "Open", (Field("id", "Task id", "search", required=True),))
        more = page.last if page is not None else None
        empty = "No task matches." if any(chosen.values()) else "There are no tasks yet."
        if more is not None and page is not None and not page.rows:
            empty = "No task of this part matches: see the older ones."
        shown = RowPage([], is_read=False) if page is None else RowPage(page.rows)
        table = replace(
            tabulate_tasks(seat, shown, "Tasks", empty=empty),
            more=locate(path, **chosen, after=write_cursor(more)) if more else "",
            first=locate(path, **chosen) if after else "",
        )
        region = Region([table], locate(path, **chosen, after=after), f"{seat.home}/events/tasks")
        return Screen("Tasks", [search, region, find, Hint("Tasks of the last 30 days.")])

    def _show_key(self, seat: Seat, obj: Object) -> Cell:
        """Return the name of the task's key, which leads to the list of its tasks."""
        name = obj["spec"]["request"].get("keyName")
        if not name:
            return Cell(NOTHING)
        text = name_key(self._keys, seat.account.name, name)
        return Cell(text, href=locate(f"{seat.home}/tasks", key=name_to_id(name)))

    def _list_models(self) -> list[tuple[str, str]]:
        """Return the ids of the models that tasks may name, without a text beside them."""
        with suppress(Unavailable):
            served = self._catalog.current.models.items()
            names = {
                name
                for (_, action), models in served
                if OPERATIONS[action].makes_tasks
                for name in models
            }
            return [(name, "") for name in sorted(names)]
        return []

    def _choose_key(self, seat: Seat, value: str) -> Iterator[Field]:
        """Yield the filter by a key that the seat governs, or by the playground, if it has any."""
        keys: list[KeyRecord] = []
        if seat.may(Act.GOVERN):
            user = seat.principal.confined_to
            found = self._keys.find(seat.account.name)
            keys = [key for key in found if user in (None, key.creator)]
        own = (name_to_id(seat.principal.key.name), "Playground (your tasks)")
        others = [("", "Any"), *([own] if seat.may(Act.CREATE) else [])]
        field = choose_key(Field("key", "Key", "search", value), keys, *others)
        if len(field.options) != 1:
            yield field

    async def show(self, call: Call, seat: Seat) -> Screen:
        """Return one task."""
        wire_id = call.scope["path_params"]["task_id"]
        obj = await self._finder.show(seat.account.name, wire_id)
        request, status = obj["spec"]["request"], obj.get("status") or {}
        path = f"{seat.home}/tasks/{wire_id}"
        parts: list[Part] = [Facts([*_describe(obj), ("Key", self._show_key(seat, obj))])]
        failure = status.get("failure")
        if wait := explain_wait(obj):
            parts.append(Notice(wait, is_problem=True))
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
        if seat.may(Act.CREATE) and _can_be_cancelled(obj):
            action = f"{path}/cancel"
            hint = (
                "The task ends as failed once the provider has stopped. What the provider has not"
                " billed is not charged."
            )
            parts.append(
                Form(
                    action,
                    "Cancel the task",
                    token=seat.sign(action),
                    text=hint,
                    opener="Cancel…",
                )
            )
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

    async def cancel(self, call: Call, seat: Seat, _: Values) -> Response:
        """End the task early."""
        seat.require(Act.CREATE)
        wire_id = call.scope["path_params"]["task_id"]
        obj = await self._finder.show(seat.account.name, wire_id)
        request = obj["spec"]["request"]
        await self._cancellation.cancel(
            seat.account.name, wire_id, request["service"], request["action"]
        )
        return redirect(f"{seat.home}/tasks/{wire_id}?done=task-cancelled")

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


def explain_wait(obj: Object) -> str:
    """Return what the task waits for, and until when, in words for its account; empty for none."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    reason = next((c["reason"] for c in conditions if c["type"] == ConditionType.SUCCEEDED), "")
    if reason not in WAITS:
        return ""
    end = format_time(deadline(GatewayTask.load(obj)))
    return f"It waits for {WAITS[reason]}, and fails at {end} if that lasts."


def _can_be_cancelled(obj: Object) -> bool:
    has_ended = (obj.get("status") or {}).get("phase") in TERMINAL_PHASES
    return not has_ended and obj["spec"].get("desiredState") != "Cancelled"


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
    # an ended task holds nothing
    held = (
        []
        if status.get("phase") in TERMINAL_PHASES
        else [("Reserved", Cell(show_micros(reserved)))]
    )
    created, ended = obj["metadata"]["creationTimestamp"], status.get("completionTime") or ""
    return [
        ("State", state(name_phase(status))),
        ("Model", Cell(request["modelId"])),
        ("Created", at(created)),
        ("Started", at(status.get("startTime"))),
        ("Ended", at(ended)),
        ("Took", Cell(show_seconds(count_seconds(created, ended)))),
        ("Cost", Cell(show_micros(status.get("chargedMicros")))),
        *held,
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
