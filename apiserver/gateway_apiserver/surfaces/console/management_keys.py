"""Management keys: the list, one of them, and its revocation. An administrator makes them."""

from collections.abc import Iterator

from gateway_apiserver.endpoints import Call
from gateway_apiserver.surfaces.console.actors import Actors
from gateway_apiserver.surfaces.console.governed import take_shown
from gateway_apiserver.surfaces.console.keys import find_state
from gateway_apiserver.surfaces.console.parts import (
    Cell,
    Facts,
    Head,
    Hint,
    Part,
    Region,
    Screen,
    Table,
    at,
    locate,
    state,
)
from gateway_apiserver.surfaces.console.seats import Console, Seat, Section, Values, read_query
from gateway_apiserver.surfaces.management.keys import revoke_key
from gateway_apiserver.surfaces.management.responses import find_use
from gateway_apiserver.surfaces.pages.html import redirect
from gateway_core.accounts.guardrails import Shown
from gateway_core.accounts.key_use import KeyUse
from gateway_core.accounts.records import AccountIndex, KeyRecord, UserRecord
from gateway_core.accounts.roles import Act, Grant, find_grant
from gateway_core.api.errors import Forbidden
from gateway_core.api.ids import name_to_id
from gateway_core.api.resource import Object
from gateway_core.kube.clock import CLOCK
from gateway_core.kube.informer import Cache
from gateway_core.kube.kinds import MANAGEMENT_KEYS
from gateway_core.kube.repository import Repository, unknown
from gateway_web.responses import Response

PATH = "/management-keys"
_HINT = (
    "With a management key a program makes and changes the account's keys and guardrails."
    " An administrator of the installation makes management keys."
)


class ManagementKeyPages:
    """Shows them to owners and admins. An admin revokes none that an owner has made."""

    def __init__(
        self,
        console: Console,
        repository: Repository,
        keys: AccountIndex[KeyRecord],
        users: Cache[UserRecord],
        uses: KeyUse,
    ) -> None:
        self._repository = repository
        self._keys = keys
        self._users = users
        self._actors = Actors(users)
        self._uses = uses
        console.add_section(Section("Management keys", PATH, Act.APPOINT))
        console.add_page(PATH, self.show_list, "management_keys")
        one = f"{PATH}/{{wire_id}}"
        console.add_page(one, self.show, "management_keys_one")
        console.add_form(f"{one}/revoke", self.revoke, "management_keys_revoke", self.show)

    async def show_list(self, call: Call, seat: Seat) -> Screen:
        """Return a page of management keys, the newest first."""
        query, path = read_query(call), f"{seat.home}{PATH}"
        after = query.get("after", "")
        page, more = take_shown(self._find(seat), after)
        heads = ("Name", "Secret", "State", "Created by", "Created", "Last used", "Expires")
        used = await self._uses.find(seat.account.name, [key.name for key, _ in page])
        rows = [
            [
                Cell(key.display_name, href=f"{path}/{name_to_id(key.name)}"),
                Cell(shown.hint, "code"),
                *self._describe(key, shown, used.get(key.name)).values(),
            ]
            for key, shown in page
        ]
        table = Table(
            "Management keys",
            [Head(text) for text in heads],
            rows,
            "There are no management keys.",
            more=locate(path, after=more) if more else "",
            first=path if after else "",
        )
        return Screen("Management keys", [Region([table]), Hint(_HINT)])

    async def show(self, call: Call, seat: Seat) -> Screen:
        """Return one key, and its revocation."""
        wire_id = call.scope["path_params"]["wire_id"]
        found = (key for key in self._find(seat) if name_to_id(key.name) == wire_id)
        key = next(found, None)
        if key is None or key.shown is None:
            raise unknown(MANAGEMENT_KEYS)
        used = await self._uses.find(seat.account.name, [key.name])
        items = [
            ("Id", Cell(wire_id, "code")),
            ("Secret", Cell(key.shown.hint, "code")),
            *self._describe(key, key.shown, used.get(key.name)).items(),
        ]
        parts: list[Part] = [Facts(items)]
        path = f"{seat.home}{PATH}"
        if not key.revoked and self._may_revoke(seat, key.creator):
            text = "Calls with it are refused from then on. This cannot be undone."
            parts.append(
                seat.offer(
                    f"{path}/{wire_id}/revoke",
                    "Revoke the key",
                    text=text,
                    opener="Revoke",
                    is_danger=True,
                )
            )
        return Screen(key.display_name, parts, back=("Management keys", path))

    async def revoke(self, call: Call, seat: Seat, _: Values) -> Response:
        """Revoke it for good."""
        seat.require(Act.APPOINT)
        wire_id = call.scope["path_params"]["wire_id"]

        def check(obj: Object) -> None:
            if not self._may_revoke(seat, obj["spec"].get("createdBy")):
                raise Forbidden("Only an owner may do this.", code="insufficient_role")

        await revoke_key(self._repository, MANAGEMENT_KEYS, seat.principal, wire_id, check)
        return redirect(f"{seat.home}{PATH}/{wire_id}?done=revoked")

    def _find(self, seat: Seat) -> Iterator[KeyRecord]:
        """Yield the account's management keys. Forbidden, Unavailable."""
        seat.require(Act.APPOINT)
        for key in self._keys.find_current(seat.account.name):
            if key.key_class == "Management":
                yield key

    def _describe(self, key: KeyRecord, shown: Shown, used: float | None) -> dict[str, Cell]:
        ends = None if key.expires_at == float("inf") else key.expires_at
        return {
            "State": state(find_state(key, CLOCK.time())),
            "Created by": self._actors.show_creator(shown, key.creator),
            "Created": at(shown.position[0]),
            "Last used": at(find_use(shown.used_at, used), otherwise="never"),
            "Expires": at(ends, otherwise="never"),
        }

    def _may_revoke(self, seat: Seat, creator: str | None) -> bool:
        if find_grant(Act.APPOINT, seat.role) is not Grant.NOT_OWNERS:
            return True
        user = None if creator is None else self._users.get(creator)
        return user is None or user.find_role(seat.account.name) != "owner"
