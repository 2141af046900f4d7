"""Guardrails: the list, one with its limits and keys, and the forms that change it."""

import secrets

from gateway_apiserver.routing import Call
from gateway_apiserver.surfaces.console.inner import InnerApi
from gateway_apiserver.surfaces.console.limits import (
    guardrail_fields,
    read_guardrail,
    share_used,
    show_limit,
    show_lists,
)
from gateway_apiserver.surfaces.console.parts import (
    NOTHING,
    Cell,
    Facts,
    Field,
    Form,
    Head,
    Part,
    Region,
    Screen,
    Table,
    at,
    number,
    numeric,
    paginate,
    show_cents,
    show_count,
    state,
)
from gateway_apiserver.surfaces.console.seats import Console, Seat, Section, Values, read_query
from gateway_apiserver.surfaces.management import ROOT as MANAGEMENT
from gateway_apiserver.surfaces.pages.html import redirect
from gateway_core.accounts.roles import Act
from gateway_web.responses import Response

PER_PAGE = 20


class GuardrailPages:
    """Guardrails, and the keys that each holds for."""

    def __init__(self, console: Console, api: InnerApi) -> None:
        self._api = api
        console.add_section(Section("Guardrails", "/guardrails", Act.GOVERN, confined=False))
        one = "/guardrails/{guardrail_id}"
        console.add_page("/guardrails", self.show_list, "guardrails")
        console.add_form("/guardrails", self.create, "guardrail_create", self.show_list)
        console.add_page(one, self.show, "guardrail")
        for word, take in (
            ("change", self.change),
            ("delete", self.delete),
            ("assign", self.assign),
            ("remove", self.remove),
        ):
            console.add_form(f"{one}/{word}", take, f"guardrail_{word}", self.show)

    async def show_list(self, call: Call, seat: Seat) -> Screen:
        """A page of guardrails, and the form for a new one."""
        query, path = read_query(call), f"{seat.home}/guardrails"
        page = await self._api.read(
            call, seat, f"{MANAGEMENT}/guardrails", limit=PER_PAGE, after=query.get("after")
        )
        heads = (Head("Name"), numeric("Used"), numeric("Limit"), numeric("Keys"), Head("Made"))
        rows = [
            [
                Cell(each["name"], href=f"{path}/{each['id']}"),
                number(show_cents(each["used_cents"]), share_used(each)),
                number(show_limit(each)),
                number(show_count(each["assigned_key_count"])),
                at(each["created_at"]),
            ]
            for each in page["data"]
        ]
        empty = "There are no guardrails yet. A guardrail is a limit that several keys share."
        table = paginate(Table("Guardrails", heads, rows, empty), path, {}, page, query)
        create = Form(
            path,
            "Make a guardrail",
            (Field("name", "Name", required=True, most=100), *guardrail_fields({})),
            hidden=(("idempotency_key", secrets.token_urlsafe(18)),),
            token=seat.sign(path),
            title="New guardrail",
            opener="New guardrail",
        )
        return Screen("Guardrails", [create, Region([table])])

    async def create(self, call: Call, seat: Seat, values: Values) -> Response:
        """Make one that holds for no key yet."""
        body = {"name": values.get("name", ""), **read_guardrail(values)}
        made = await self._api.write(
            call,
            seat,
            "POST",
            f"{MANAGEMENT}/guardrails",
            {name: value for name, value in body.items() if value not in (None, [])},
            key=values.get("idempotency_key", ""),
        )
        return redirect(f"{seat.home}/guardrails/{made['id']}")

    async def show(self, call: Call, seat: Seat) -> Screen:
        """One guardrail, its keys, and what may be done with it."""
        wire_id = call.scope["path_params"]["guardrail_id"]
        root, path = f"{MANAGEMENT}/guardrails/{wire_id}", f"{seat.home}/guardrails/{wire_id}"
        each = await self._api.read(call, seat, root)
        query = read_query(call)
        assigned = await self._api.read(
            call, seat, f"{root}/assignments", limit=PER_PAGE, after=query.get("after")
        )
        items = [
            ("Id", Cell(each["id"], "code")),
            ("Description", Cell(each["description"] or NOTHING)),
            ("Used", number(show_cents(each["used_cents"]), share_used(each))),
            ("Limit", Cell(show_limit(each))),
            ("Calls a minute", Cell(show_count(each["rpm_limit"]))),
            ("Made", at(each["created_at"])),
            ("Changed", at(each["updated_at"])),
            *show_lists(each),
        ]
        rows = [
            [
                Cell(key["key_name"], href=f"{seat.home}/keys/{key['key_id']}"),
                Cell(key["key_id"], "code"),
                state(key["key_status"]),
            ]
            for key in assigned["data"]
        ]
        heads = (Head("Name"), Head("Id"), Head("State"))
        keys = Table("Keys", heads, rows, "It holds for no key yet.", is_titled=True)
        keys = paginate(keys, path, {}, assigned, query)
        field = Field("key_id", "Key id", required=True, hint="As the key's page shows it.")
        forms: list[Part] = [
            Form(f"{path}/{word}", text, (field,), token=seat.sign(f"{path}/{word}"), opener=text)
            for word, text in (("assign", "Put a key under it"), ("remove", "Take a key out"))
        ]
        change = Form(
            f"{path}/change",
            "Save",
            (Field("name", "Name", value=each["name"], required=True), *guardrail_fields(each)),
            token=seat.sign(f"{path}/change"),
            title="Change",
            opener="Change name and limits",
        )
        delete = Form(
            f"{path}/delete",
            "Delete the guardrail",
            token=seat.sign(f"{path}/delete"),
            text="Its keys stay, without this limit.",
            opener="Delete",
            is_danger=True,
        )
        parts = [Facts(items), Region([keys]), *forms, change, delete]
        return Screen(each["name"], parts, back=("Guardrails", f"{seat.home}/guardrails"))

    async def change(self, call: Call, seat: Seat, values: Values) -> Response:
        """Change name and limits."""
        wire_id = call.scope["path_params"]["guardrail_id"]
        body = {"name": values.get("name", ""), **read_guardrail(values)}
        await self._api.write(call, seat, "PATCH", f"{MANAGEMENT}/guardrails/{wire_id}", body)
        return redirect(f"{seat.home}/guardrails/{wire_id}?done=changed")

    async def delete(self, call: Call, seat: Seat, _: Values) -> Response:
        """Delete it, also where it holds for keys."""
        wire_id = call.scope["path_params"]["guardrail_id"]
        path = f"{MANAGEMENT}/guardrails/{wire_id}?force=true"
        await self._api.write(call, seat, "DELETE", path)
        return redirect(f"{seat.home}/guardrails?done=deleted")

    async def assign(self, call: Call, seat: Seat, values: Values) -> Response:
        """Put one key under it."""
        return await self._assign(call, seat, values, "", "assigned")

    async def remove(self, call: Call, seat: Seat, values: Values) -> Response:
        """Take one key out."""
        return await self._assign(call, seat, values, "/remove", "unassigned")

    async def _assign(
        self, call: Call, seat: Seat, values: Values, below: str, done: str
    ) -> Response:
        wire_id = call.scope["path_params"]["guardrail_id"]
        body = {"key_ids": [values.get("key_id", "").strip()]}
        path = f"{MANAGEMENT}/guardrails/{wire_id}/assignments{below}"
        await self._api.write(call, seat, "POST", path, body)
        return redirect(f"{seat.home}/guardrails/{wire_id}?done={done}")
