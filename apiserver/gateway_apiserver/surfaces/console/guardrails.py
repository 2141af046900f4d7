"""Guardrails: the list, one with its limits and keys, and the forms that change it."""

from collections.abc import Iterator
from typing import Any

from gateway_apiserver.endpoints import Call
from gateway_apiserver.surfaces.console.choices import choose_key
from gateway_apiserver.surfaces.console.governed import (
    PER_PAGE,
    GovernedPages,
    guardrail_fields,
    read_guardrail,
    show_lists,
    show_use,
    take_shown,
)
from gateway_apiserver.surfaces.console.inner import InnerApi
from gateway_apiserver.surfaces.console.parts import (
    NOTHING,
    Cell,
    Facts,
    Field,
    Head,
    Part,
    Region,
    Screen,
    Table,
    at,
    locate,
    number,
    numeric,
    paginate,
    show_count,
    state,
)
from gateway_apiserver.surfaces.console.seats import Console, Seat, Section, Values, read_query
from gateway_apiserver.surfaces.pages.html import redirect
from gateway_core.accounts.guardrails import Guardrail
from gateway_core.accounts.records import AccountIndex, KeyRecord
from gateway_core.accounts.roles import Act
from gateway_core.admission.rates import RateLimiter
from gateway_core.api.ids import id_to_name, name_to_id
from gateway_core.api.limits import subject_of_guardrail
from gateway_core.providers.offers import Offers
from gateway_web.responses import Response


class GuardrailPages(GovernedPages):
    """Guardrails, and the keys that each holds for."""

    def __init__(
        self,
        console: Console,
        api: InnerApi,
        limiter: RateLimiter,
        offers: Offers,
        guardrails: AccountIndex[Guardrail],
        keys: AccountIndex[KeyRecord],
    ) -> None:
        self._guardrails = guardrails
        self._keys = keys
        section = Section("Guardrails", "/guardrails", Act.GOVERN, confined=False)
        words = ("change", "delete", "assign", "remove")
        super().__init__(console, api, limiter, offers, "guardrails", section, *words)

    async def show_list(self, call: Call, seat: Seat) -> Screen:
        """Return a page of guardrails, and the form for a new one."""
        seat.require(Act.GOVERN, confined=False)
        path, after = f"{seat.home}/guardrails", read_query(call).get("after", "")
        page, more = take_shown(self._guardrails.find_current(seat.account.name), after)
        subjects = {subject_of_guardrail(each.name): each.rules for each, _ in page}
        budgets = await self.read_budgets(seat, subjects)
        # names of deleted keys do not count
        keys = {key.name for key in self._keys.find(seat.account.name)}
        heads = (Head("Name"), numeric("Used"), numeric("Limit"), numeric("Keys"), Head("Created"))
        rows = [
            [
                Cell(each.display_name, href=f"{path}/{name_to_id(each.name)}"),
                *show_use(budgets[subject_of_guardrail(each.name)]).values(),
                number(show_count(len(each.key_names & keys))),
                at(shown.position[0]),
            ]
            for each, shown in page
        ]
        table = Table(
            "Guardrails",
            heads,
            rows,
            "There are no guardrails yet. A guardrail is a limit that several keys share.",
            more=locate(path, after=more) if more else "",
            first=path if after else "",
        )
        create = self.offer_creation(
            seat, "New guardrail", "Make a guardrail", *guardrail_fields({})
        )
        return Screen("Guardrails", [create, Region([table])])

    def read(self, values: Values) -> dict[str, Any]:
        """Return the body of the operations for a form."""
        return {"name": values.get("name", ""), **read_guardrail(values)}

    async def create(self, call: Call, seat: Seat, values: Values) -> Response:
        """Make one that holds for no key yet."""
        made = await self.make(call, seat, values)
        return redirect(f"{seat.home}/guardrails/{made['id']}")

    async def show(self, call: Call, seat: Seat) -> Screen:
        """Return one guardrail, its keys, and what may be done with it."""
        root, path = self.operation(call), self.locate(call, seat)
        each = await self._api.read(call, seat, root)
        after = read_query(call).get("after")
        assigned = await self._api.read(
            call, seat, f"{root}/assignments", limit=PER_PAGE, after=after
        )
        items = [
            ("Id", Cell(each["id"], "code")),
            ("Description", Cell(each["description"] or NOTHING)),
            *show_use(each).items(),
            ("Calls a minute", Cell(show_count(each["rpm_limit"]))),
            ("Created", at(each["created_at"])),
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
        keys = paginate(keys, path, {}, assigned, read_query(call))
        forms = self._offer_keys(seat, path, id_to_name(each["id"]))
        change = self.offer_change(
            seat, path, "Change name and limits", each["name"], *guardrail_fields(each)
        )
        text = "Its keys stay, without this limit."
        delete = seat.offer(
            f"{path}/delete", "Delete the guardrail", text=text, opener="Delete", is_danger=True
        )
        parts = [*self.warn_of_names(each), Facts(items), Region([keys]), *forms, change, delete]
        return Screen(each["name"], parts, back=("Guardrails", f"{seat.home}/guardrails"))

    def _offer_keys(self, seat: Seat, path: str, name: str) -> Iterator[Part]:
        """Yield the forms that put a key under a guardrail and that take one out."""
        account = seat.account.name
        guardrail = self._guardrails.get(account, name)
        own = frozenset[str]() if guardrail is None else guardrail.key_names
        keys = [key for key in self._keys.find(account) if key.key_class == "Standard"]
        others = [key for key in keys if key.name not in own and not key.revoked]
        found = [key for key in keys if key.name in own]
        for word, text, choices in (
            ("assign", "Put a key under it", others),
            ("remove", "Take a key out", found),
        ):
            if choices:
                field = choose_key(Field("key_id", "Key", required=True, param="key_ids"), choices)
                yield seat.offer(f"{path}/{word}", text, (field,), opener=text)

    async def delete(self, call: Call, seat: Seat, _: Values) -> Response:
        """Delete it, also where it holds for keys."""
        await self._api.write(call, seat, "DELETE", self.operation(call), force="true")
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
        body = {"key_ids": [values.get("key_id", "").strip()]}
        path = f"{self.operation(call)}/assignments{below}"
        await self._api.write(call, seat, "POST", path, body)
        return redirect(f"{self.locate(call, seat)}?done={done}")
