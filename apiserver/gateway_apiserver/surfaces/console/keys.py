"""Standard keys: the list, one with its limits and state, and the forms that change it."""

import secrets
from collections.abc import Sequence
from typing import Any, get_args

from gateway_apiserver.routing import Call
from gateway_apiserver.surfaces.console.governed import (
    GovernedPages,
    limit_fields,
    read_limits,
    show_lists,
    show_use,
)
from gateway_apiserver.surfaces.console.inner import InnerApi
from gateway_apiserver.surfaces.console.parts import (
    NOTHING,
    Cell,
    Facts,
    Field,
    Form,
    Head,
    Notice,
    Part,
    Region,
    Screen,
    Table,
    at,
    numeric,
    paginate,
    show_count,
    show_secret,
    state,
)
from gateway_apiserver.surfaces.console.seats import Console, Seat, Section, Values, read_query
from gateway_apiserver.surfaces.management.responses import KeyState
from gateway_apiserver.surfaces.pages.html import redirect
from gateway_core.accounts.roles import Act
from gateway_web.responses import Response

_STATES = [("", "Any"), *((word, word) for word in get_args(KeyState))]
_DAY = 86_400
_OVERLAPS = [("0", "at once"), ("3600", "after an hour"), (str(_DAY), "after a day")]


class KeyPages(GovernedPages):
    """Standard keys."""

    def __init__(self, console: Console, api: InnerApi) -> None:
        section = Section("Keys", "/keys", Act.GOVERN)
        super().__init__(console, api, "keys", section, "change", "rotate", "revoke")

    async def show_list(self, call: Call, seat: Seat) -> Screen:
        """A page of keys, and the form for a new one."""
        query, path = read_query(call), f"{seat.home}/keys"
        chosen = {name: query.get(name, "").strip() for name in ("name_contains", "status")}
        page = await self.read_page(call, seat, **chosen)
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
            Head("Created by"),
        )
        rows = [_show_row(path, key) for key in page["data"]]
        empty = "No key matches." if any(chosen.values()) else "There are no keys yet."
        table = paginate(Table("Keys", heads, rows, empty), path, chosen, page, query)
        hint = "At the start of this day, in UTC."
        end = Field("expires_at", "Expires on", "date", hint=hint)
        create = self.offer_creation(seat, "New key", "Make a key", *limit_fields({}), end)
        return Screen("Keys", [create, search, Region([table])])

    def read(self, values: Values) -> dict[str, Any]:
        """What a form says of one, as the operations take it. InvalidRequest."""
        return {"name": values.get("name", ""), **read_limits(values)}

    async def create(self, call: Call, seat: Seat, values: Values) -> Screen:
        """Make a key; its secret is on the page that answers, and nowhere else."""
        day = values.get("expires_at")
        end = {"expires_at": f"{day}T00:00:00Z"} if day else {}
        return _show_secret(seat, await self.make(call, seat, values, **end))

    async def show(self, call: Call, seat: Seat) -> Screen:
        """One key, its limits, and what may be done with it."""
        key = await self._api.read(call, seat, self.operation(call))
        items = [
            ("State", state(key["status"])),
            ("Id", Cell(key["id"], "code")),
            ("Secret", Cell(key["hint"], "code")),
            *show_use(key).items(),
            ("Limit resets", at(key["reset_at"])),
            ("Calls a minute", Cell(show_count(key["rpm_limit"]))),
            ("Created by", _show_maker(key)),
            ("Created", at(key["created_at"])),
            ("Changed", at(key["updated_at"])),
            ("Last used", at(key["last_used_at"], otherwise="never")),
            ("Expires", at(key["expires_at"], otherwise="never")),
            ("Revoked", at(key["revoked_at"], otherwise="no")),
            *show_lists(key),
            ("Guardrails", Cell(", ".join(key["guardrail_ids"]) or "none")),
        ]
        parts: list[Part] = [Facts(items)]
        if key["status"] != "revoked":
            parts += self._offer_changes(seat, self.locate(call, seat), key)
        return Screen(key["name"], parts, back=("Keys", f"{seat.home}/keys"))

    async def change(self, call: Call, seat: Seat, values: Values) -> Response:
        """Change name, state and limits."""
        body = {**self.read(values), "disabled": values.get("disabled") == "true"}
        await self._api.write(call, seat, "PATCH", self.operation(call), body)
        return redirect(f"{self.locate(call, seat)}?done=changed")

    async def rotate(self, call: Call, seat: Seat, values: Values) -> Screen:
        """Give the key a new secret, which the answer shows."""
        seconds, once = values.get("overlap_seconds", "0"), values.get("idempotency_key", "")
        body = {"overlap_seconds": int(seconds) if seconds.isdigit() else seconds}
        path = f"{self.operation(call)}/rotate"
        return _show_secret(seat, await self._api.write(call, seat, "POST", path, body, key=once))

    async def revoke(self, call: Call, seat: Seat, _: Values) -> Response:
        """Revoke it for good."""
        await self._api.write(call, seat, "DELETE", self.operation(call))
        return redirect(f"{self.locate(call, seat)}?done=revoked")

    def _offer_changes(self, seat: Seat, path: str, key: Any) -> list[Form]:
        disabled = Field("disabled", "Disabled", "checkbox", "true" if key["disabled"] else "")
        change = "Change name, state and limits"
        overlap = Field("overlap_seconds", "The old secret ends", "select", options=_OVERLAPS)
        once = (("idempotency_key", secrets.token_urlsafe(18)),)
        text = "Calls with it are refused from then on. This cannot be undone."
        return [
            self.offer_change(seat, path, change, key["name"], disabled, *limit_fields(key)),
            seat.offer(
                f"{path}/rotate", "Make a new secret", (overlap,), hidden=once, opener="New secret"
            ),
            seat.offer(
                f"{path}/revoke", "Revoke the key", text=text, opener="Revoke", is_danger=True
            ),
        ]


def _show_row(path: str, key: Any) -> Sequence[Cell]:
    return [
        Cell(key["name"], href=f"{path}/{key['id']}"),
        Cell(key["hint"], "code"),
        state(key["status"]),
        *show_use(key).values(),
        at(key["last_used_at"], otherwise="never"),
        _show_maker(key),
    ]


def _show_maker(key: Any) -> Cell:
    return Cell((key["created_by"] or {}).get("name", NOTHING))


def _show_secret(seat: Seat, key: Any) -> Screen:
    back = (key["name"], f"{seat.home}/keys/{key['id']}")
    if key["secret"] is None:
        text = "This was done already, and its secret was shown then. Rotate the key for a new one."
        return Screen("Secret", [Notice(text, is_problem=True)], back=back)
    how = "Send it as: Authorization: Bearer, a space, and the secret."
    return Screen("The key's secret", show_secret(key["secret"], how), back=back)
