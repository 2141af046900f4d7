"""Standard keys: the list, one with its limits and state, and the forms that change it."""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date
from typing import Any, get_args

from gateway_apiserver.endpoints import Call
from gateway_apiserver.surfaces.console.actors import Actors
from gateway_apiserver.surfaces.console.governed import (
    GovernedPages,
    limit_fields,
    read_count,
    read_limits,
    show_lists,
    show_use,
    take_shown,
)
from gateway_apiserver.surfaces.console.inner import InnerApi, Wrong
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
    locate,
    numeric,
    show_count,
    show_secret,
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
from gateway_apiserver.surfaces.management.responses import KeyState, find_use
from gateway_apiserver.surfaces.pages.html import redirect
from gateway_core.accounts.guardrails import Guardrail, Shown
from gateway_core.accounts.key_use import KeyUse
from gateway_core.accounts.records import AccountIndex, KeyRecord, UserRecord
from gateway_core.accounts.roles import Act
from gateway_core.admission.rates import RateLimiter
from gateway_core.api.ids import id_to_name, name_to_id
from gateway_core.api.limits import subject_of_key
from gateway_core.kube.clock import CLOCK
from gateway_core.kube.informer import Cache
from gateway_core.providers.offers import Offers
from gateway_web.responses import Response

_STATES = [("", "Any"), *((word, word.capitalize()) for word in get_args(KeyState))]
_DAY = 86_400
_OVERLAPS = [("0", "at once"), ("3600", "after an hour"), (str(_DAY), "after a day")]


class KeyPages(GovernedPages):
    """Standard keys."""

    def __init__(
        self,
        console: Console,
        api: InnerApi,
        limiter: RateLimiter,
        offers: Offers,
        keys: AccountIndex[KeyRecord],
        guardrails: AccountIndex[Guardrail],
        users: Cache[UserRecord],
        uses: KeyUse,
    ) -> None:
        self._keys = keys
        self._guardrails = guardrails
        self._actors = Actors(users)
        self._uses = uses
        section = Section("Keys", "/keys", Act.GOVERN)
        super().__init__(
            console, api, limiter, offers, "keys", section, "change", "rotate", "revoke"
        )

    async def show_list(self, call: Call, seat: Seat) -> Screen:
        """Return a page of keys, and the form for a new one."""
        query, path = read_query(call), f"{seat.home}/keys"
        after = query.get("after", "")
        chosen = {
            "name_contains": query.get("name_contains", "").strip(),
            "status": read_choice(query, "status", get_args(KeyState)),
        }
        page, more = take_shown(self._find(seat, *chosen.values()), after)
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
        rows = await self._show_rows(seat, page)
        empty = "You have" if seat.principal.confined_to else "The account has"
        empty = "No key matches." if any(chosen.values()) else f"{empty} no keys yet."
        table = Table(
            "Keys",
            heads,
            rows,
            empty,
            more=locate(path, **chosen, after=more) if more else "",
            first=locate(path, **chosen) if after else "",
        )
        hint = "At the start of this day, in UTC."
        end = Field("expires_at", "Expires on", "date", hint=hint)
        create = self.offer_creation(seat, "New key", "Make a key", *limit_fields({}), end)
        return Screen("Keys", [create, search, Region([table])])

    def _find(self, seat: Seat, name: str, status: str) -> Iterator[KeyRecord]:
        """Yield those of a name and state that the seat governs. Forbidden, Unavailable."""
        seat.require(Act.GOVERN)
        user, now, part = seat.principal.confined_to, CLOCK.time(), name.casefold()
        for key in self._keys.find_current(seat.account.name):
            is_own = key.key_class == "Standard" and user in (None, key.creator)
            has_status = status in ("", find_state(key, now))
            if is_own and has_status and part in key.display_name.casefold():
                yield key

    async def _show_rows(
        self, seat: Seat, page: Sequence[tuple[KeyRecord, Shown]]
    ) -> list[Sequence[Cell]]:
        budgets = await self.read_budgets(
            seat, {subject_of_key(key.name): key.rules for key, _ in page}
        )
        used = await self._uses.find(seat.account.name, [key.name for key, _ in page])
        now, rows = CLOCK.time(), list[Sequence[Cell]]()
        for key, shown in page:
            wire_id = name_to_id(key.name)
            rows.append(
                [
                    Cell(key.display_name, href=f"{seat.home}/keys/{wire_id}"),
                    Cell(shown.hint, "code"),
                    state(find_state(key, now)),
                    *show_use(budgets[subject_of_key(key.name)]).values(),
                    at(find_use(shown.used_at, used.get(key.name)), otherwise="never"),
                    self._actors.show_creator(shown, key.creator),
                ]
            )
        return rows

    def read(self, values: Values) -> dict[str, Any]:
        """Return the body of the operations for a form."""
        return {"name": values.get("name", ""), **read_limits(values)}

    async def create(self, call: Call, seat: Seat, values: Values) -> Screen:
        """Make a key; its secret is on the page that answers, and nowhere else."""
        end = _read_end(values.get("expires_at", "").strip())
        made = await self.make(call, seat, values, expires_at=end)
        screen = _show_secret(seat, made)
        return replace(screen, parts=[*screen.parts, *self.warn_of_names(made)])

    async def show(self, call: Call, seat: Seat) -> Screen:
        """Return one key, its limits, and what may be done with it."""
        key = await self._api.read(call, seat, self.operation(call))
        items = [
            ("State", state(key["status"])),
            ("Id", Cell(key["id"], "code")),
            ("Secret", Cell(key["hint"], "code")),
            *show_use(key).items(),
            ("Limit resets", at(key["reset_at"])),
            ("Calls a minute", Cell(show_count(key["rpm_limit"]))),
            ("Created by", self._show_creator(seat, key["id"])),
            ("Created", at(key["created_at"])),
            ("Changed", at(key["updated_at"])),
            ("Last used", at(key["last_used_at"], otherwise="never")),
            ("Expires", at(key["expires_at"], otherwise="never")),
            ("Revoked", at(key["revoked_at"], otherwise="no")),
            *show_lists(key),
            ("Guardrails", Cell(", ".join(self._name_guardrails(seat, key)) or "none")),
        ]
        parts: list[Part] = [*self.warn_of_names(key), Facts(items)]
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
        body = {"overlap_seconds": read_count("overlap_seconds", values) or 0}
        once = values.get("idempotency_key", "")
        path = f"{self.operation(call)}/rotate"
        return _show_secret(seat, await self._api.write(call, seat, "POST", path, body, key=once))

    async def revoke(self, call: Call, seat: Seat, _: Values) -> Response:
        """Revoke it for good."""
        await self._api.write(call, seat, "DELETE", self.operation(call))
        return redirect(f"{self.locate(call, seat)}?done=revoked")

    def _show_creator(self, seat: Seat, wire_id: str) -> Cell:
        key = self._keys.get(seat.account.name, id_to_name(wire_id))
        if key is None or key.shown is None:
            return Cell(NOTHING)
        return self._actors.show_creator(key.shown, key.creator)

    def _name_guardrails(self, seat: Seat, key: Any) -> Iterator[str]:
        for wire_id in key["guardrail_ids"]:
            guardrail = self._guardrails.get(seat.account.name, id_to_name(wire_id))
            yield wire_id if guardrail is None else guardrail.display_name

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


def _read_end(day: str) -> str | Wrong | None:
    """Return the begin of the day, None where there is none."""
    if not day:
        return None
    problem = "must be a date of the year 2000 or later"
    with suppress(ValueError):
        end = date.fromisoformat(day)
        if end > CLOCK.now().date():
            return f"{end}T00:00:00Z"
        if end.year >= 2000:
            problem = "must be a day after today"
    return Wrong(problem)


def find_state(key: KeyRecord, now: float) -> KeyState:
    """Return the state, as `find_status` of the operations does."""
    if key.revoked:
        return "revoked"
    if key.expires_at <= now:
        return "expired"
    return "disabled" if key.shown is not None and key.shown.is_disabled else "active"


def _show_secret(seat: Seat, key: Any) -> Screen:
    back = (key["name"], f"{seat.home}/keys/{key['id']}")
    if key["secret"] is None:
        text = (
            "The secret was shown when this form was first sent. Make a new secret on the key's"
            " page."
        )
        return Screen("Secret", [Notice(text, is_problem=True)], back=back)
    how = "Send it as: Authorization: Bearer, a space, and the secret."
    return Screen("The key's secret", show_secret(key["secret"], how), back=back)
