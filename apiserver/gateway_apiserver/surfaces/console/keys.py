"""Standard keys: the list, one with its limits and state, and the forms that change it.

All is done by the operations of Platform Management (`surfaces/management`).
"""

import secrets
from collections.abc import Sequence
from typing import Any, get_args

from gateway_apiserver.routing import Call
from gateway_apiserver.surfaces.console.inner import InnerApi
from gateway_apiserver.surfaces.console.limits import (
    limit_fields,
    read_limits,
    share_used,
    show_limit,
    show_lists,
)
from gateway_apiserver.surfaces.console.parts import (
    NOTHING,
    Cell,
    Code,
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
from gateway_apiserver.surfaces.management.responses import KeyState
from gateway_apiserver.surfaces.pages.html import redirect
from gateway_core.accounts.roles import Act
from gateway_web.responses import Response

PER_PAGE = 20
_STATES = [("", "Any"), *((word, word) for word in get_args(KeyState))]
_DAY = 86_400
_OVERLAPS = [("0", "at once"), ("3600", "after an hour"), (str(_DAY), "after a day")]


class KeyPages:
    """Standard keys."""

    def __init__(self, console: Console, api: InnerApi) -> None:
        self._api = api
        console.add_section(Section("Keys", "/keys", Act.GOVERN))
        one = "/keys/{key_id}"
        console.add_page("/keys", self.show_list, "keys")
        console.add_form("/keys", self.create, "key_create", self.show_list)
        console.add_page(one, self.show, "key")
        for word, take in (
            ("change", self.change),
            ("rotate", self.rotate),
            ("revoke", self.revoke),
        ):
            console.add_form(f"{one}/{word}", take, f"key_{word}", self.show)

    async def show_list(self, call: Call, seat: Seat) -> Screen:
        """A page of keys, and the form for a new one."""
        query, path = read_query(call), f"{seat.home}/keys"
        chosen = {name: query.get(name, "").strip() for name in ("name_contains", "status")}
        page = await self._api.read(
            call, seat, f"{MANAGEMENT}/keys", limit=PER_PAGE, after=query.get("after"), **chosen
        )
        search = Form(
            path,
            "Show",
            (
                Field("name_contains", "Name", "search", chosen["name_contains"]),
                Field("status", "State", "select", chosen["status"], options=_STATES),
            ),
            filters=True,
        )
        heads = (
            Head("Name"),
            Head("Secret"),
            Head("State"),
            numeric("Used"),
            numeric("Limit"),
            Head("Last used"),
            Head("Made by"),
        )
        rows = [_show_row(path, key) for key in page["data"]]
        empty = "No key matches." if any(chosen.values()) else "There are no keys yet."
        table = paginate(Table("Keys", heads, rows, empty), path, chosen, page, query)
        create = Form(
            path,
            "Make a key",
            (
                Field("name", "Name", required=True, most=100),
                *limit_fields({}),
                Field("expires_at", "Ends on", "date", hint="At the start of this day, in UTC."),
            ),
            hidden=(("idempotency_key", secrets.token_urlsafe(18)),),
            token=seat.sign(path),
            title="New key",
            opener="New key",
        )
        return Screen("Keys", [create, search, Region([table])])

    async def create(self, call: Call, seat: Seat, values: Values) -> Screen:
        """Make a key; its secret is on the page that answers, and nowhere else."""
        body = {"name": values.get("name", ""), **read_limits(values)}
        if values.get("expires_at"):
            body["expires_at"] = f"{values['expires_at']}T00:00:00Z"
        key = await self._api.write(
            call,
            seat,
            "POST",
            f"{MANAGEMENT}/keys",
            {name: value for name, value in body.items() if value not in (None, [])},
            key=values.get("idempotency_key", ""),
        )
        return _show_secret(seat, key)

    async def show(self, call: Call, seat: Seat) -> Screen:
        """One key, its limits, and what may be done with it."""
        wire_id = call.scope["path_params"]["key_id"]
        key = await self._api.read(call, seat, f"{MANAGEMENT}/keys/{wire_id}")
        path = f"{seat.home}/keys/{wire_id}"
        items = [
            ("State", state(key["status"])),
            ("Id", Cell(key["id"], "code")),
            ("Secret", Cell(key["hint"], "code")),
            ("Used", number(show_cents(key["used_cents"]), share_used(key))),
            ("Limit", Cell(show_limit(key))),
            ("Less is used from", at(key["reset_at"])),
            ("Calls a minute", Cell(show_count(key["rpm_limit"]))),
            ("Made by", Cell((key["created_by"] or {}).get("name", NOTHING))),
            ("Made", at(key["created_at"])),
            ("Changed", at(key["updated_at"])),
            ("Last used", at(key["last_used_at"], otherwise="never")),
            ("Ends", at(key["expires_at"], otherwise="never")),
            ("Revoked", at(key["revoked_at"], otherwise="no")),
            *show_lists(key),
            ("Guardrails", Cell(", ".join(key["guardrail_ids"]) or "none")),
        ]
        parts: list[Part] = [Facts(items)]
        if key["status"] != "revoked":
            parts += _key_forms(seat, path, key)
        return Screen(key["name"], parts, back=("Keys", f"{seat.home}/keys"))

    async def change(self, call: Call, seat: Seat, values: Values) -> Response:
        """Change name, state and limits."""
        wire_id = call.scope["path_params"]["key_id"]
        body = {
            "name": values.get("name", ""),
            "disabled": values.get("disabled") == "true",
            **read_limits(values),
        }
        await self._api.write(call, seat, "PATCH", f"{MANAGEMENT}/keys/{wire_id}", body)
        return redirect(f"{seat.home}/keys/{wire_id}?done=changed")

    async def rotate(self, call: Call, seat: Seat, values: Values) -> Screen:
        """Give the key a new secret, which the answer shows."""
        wire_id = call.scope["path_params"]["key_id"]
        seconds = values.get("overlap_seconds", "0")
        key = await self._api.write(
            call,
            seat,
            "POST",
            f"{MANAGEMENT}/keys/{wire_id}/rotate",
            {"overlap_seconds": int(seconds) if seconds.isdigit() else seconds},
            key=values.get("idempotency_key", ""),
        )
        return _show_secret(seat, key)

    async def revoke(self, call: Call, seat: Seat, _: Values) -> Response:
        """Revoke it for good."""
        wire_id = call.scope["path_params"]["key_id"]
        await self._api.write(call, seat, "DELETE", f"{MANAGEMENT}/keys/{wire_id}")
        return redirect(f"{seat.home}/keys/{wire_id}?done=revoked")


def _show_row(path: str, key: Any) -> Sequence[Cell]:
    return [
        Cell(key["name"], href=f"{path}/{key['id']}"),
        Cell(key["hint"], "code"),
        state(key["status"]),
        number(show_cents(key["used_cents"]), share_used(key)),
        number(show_limit(key)),
        at(key["last_used_at"], otherwise="never"),
        Cell((key["created_by"] or {}).get("name", NOTHING)),
    ]


def _key_forms(seat: Seat, path: str, key: Any) -> list[Form]:
    once = (("idempotency_key", secrets.token_urlsafe(18)),)
    return [
        Form(
            f"{path}/change",
            "Save",
            (
                Field("name", "Name", value=key["name"], required=True, most=100),
                Field("disabled", "Disabled", "checkbox", "true" if key["disabled"] else ""),
                *limit_fields(key),
            ),
            token=seat.sign(f"{path}/change"),
            title="Change",
            opener="Change name, state and limits",
        ),
        Form(
            f"{path}/rotate",
            "Make a new secret",
            (Field("overlap_seconds", "The old secret ends", "select", options=_OVERLAPS),),
            hidden=once,
            token=seat.sign(f"{path}/rotate"),
            opener="New secret",
        ),
        Form(
            f"{path}/revoke",
            "Revoke the key",
            token=seat.sign(f"{path}/revoke"),
            text="Calls with it are refused from then on. This cannot be undone.",
            opener="Revoke",
            is_danger=True,
        ),
    ]


def _show_secret(seat: Seat, key: Any) -> Screen:
    back = (key["name"], f"{seat.home}/keys/{key['id']}")
    if key["secret"] is None:
        text = "This was done already, and its secret was shown then. Rotate the key for a new one."
        return Screen("Secret", [Notice(text, is_problem=True)], back=back)
    return Screen(
        "The key's secret",
        [
            Notice("Copy it now: it is shown this once, and is stored nowhere."),
            Code("Secret", key["secret"], is_secret=True),
            Hint("Send it as: Authorization: Bearer, a space, and the secret."),
        ],
        back=back,
    )
