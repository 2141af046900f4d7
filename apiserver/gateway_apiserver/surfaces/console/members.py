"""Members of the account with their roles, changes of roles, and invitations."""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, get_args

from gateway_apiserver.endpoints import Call
from gateway_apiserver.surfaces.console.inner import InnerApi
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
    locate,
    paginate,
    state,
)
from gateway_apiserver.surfaces.console.seats import Console, Seat, Section, Values, read_query
from gateway_apiserver.surfaces.management import ROOT as MANAGEMENT
from gateway_apiserver.surfaces.management.members import MemberService
from gateway_apiserver.surfaces.pages.html import redirect
from gateway_apiserver.surfaces.validation import refuse_fields
from gateway_core.accounts.invitations import Invitation, Invitations, find_member
from gateway_core.accounts.password_links import LINK_HOURS, locate_link
from gateway_core.accounts.records import UserRecord
from gateway_core.accounts.roles import Act, Grant, find_grant
from gateway_core.api.account import Role
from gateway_core.kube.clock import CLOCK
from gateway_core.kube.informer import Cache
from gateway_core.mail import Mailer, MailFailed
from gateway_web.responses import Response

PER_PAGE = 20
_ROLES: tuple[Role, ...] = get_args(Role)
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+")
MAX_EMAIL, MAX_NAME = 254, 127


class MemberPages:
    """The list, roles, invitations, and links to choose a password."""

    def __init__(
        self,
        console: Console,
        api: InnerApi,
        members: MemberService,
        invitations: Invitations | None,
        users: Cache[UserRecord],
        mailer: Mailer | None,
        base_url: str,
    ) -> None:
        self._api = api
        self._members = members
        self._users = users
        self._mailer = mailer
        self._base_url = base_url
        console.add_section(Section("Members", "/members", Act.READ_MEMBERS))
        console.add_page("/members", self.show_list, "members")
        console.add_form("/members", self.change, "member_change", self.show_list)
        self._invites = invitations is not None
        if invitations is not None:
            invite, renew = partial(self.invite, invitations), partial(self.renew, invitations)
            console.add_form("/members/invite", invite, "member_invite", self.show_list)
            console.add_form("/members/link", renew, "member_link", self.show_list)
        console.add_page("/members/one", self.show, "member_one")
        console.add_form("/members/one", self.change_one, "member_role", self.show)
        console.add_form("/members/remove", self.remove, "member_remove", self.show_list)

    async def show_list(self, call: Call, seat: Seat) -> Screen:
        """Return a page of members."""
        query, path = read_query(call), f"{seat.home}/members"
        page = await self._api.read(
            call, seat, f"{MANAGEMENT}/members", limit=PER_PAGE, after=query.get("after")
        )
        heads = (Head("Name"), Head("Email"), Head("Role"), Head("State"), Head("Since"))
        appoints = seat.may(Act.APPOINT)
        known = {user.id: user for _, user in [*self._users.items()]}
        rows = [
            [
                Cell(each["name"], href=locate(f"{path}/one", id=each["id"]) if appoints else ""),
                Cell(each["email"]),
                state(each["role"]),
                state(_find_state(known.get(each["id"]), each["suspended"])),
                at(each["created_at"]),
            ]
            for each in page["data"]
        ]
        table = paginate(
            Table("Members", heads, rows, "The account has no members."), path, {}, page, query
        )
        parts: list[Part] = [Region([table])]
        if appoints:
            parts += _offer_changes(seat, path, page["data"], invites=self._invites)
        else:
            parts.append(Hint("Owners and admins invite and remove members."))
        return Screen("Members", parts)

    async def show(self, call: Call, seat: Seat) -> Screen:
        """Return one member, and what may be done with their membership."""
        seat.require(Act.APPOINT)
        user = find_member(self._users, seat.account.name, read_query(call).get("id", ""))
        path, hidden = f"{seat.home}/members", (("id", str(user.id)),)
        items = [
            ("Email", Cell(user.email)),
            ("Role", state(user.find_role(seat.account.name) or NOTHING)),
            ("State", state(_find_state(user, user.suspended))),
            ("Since", at(user.created_at)),
        ]
        parts: list[Part] = [Facts(items)]
        choice = _choose_role(seat, "New role", user.find_role(seat.account.name) or "")
        back = ("Members", path)
        if choice.value not in dict(choice.options):
            parts.append(Hint("Only an owner may change or remove an owner."))
            return Screen(user.display_name, parts, back=back)
        text, one = "Change the role", f"{path}/one"
        action, token = locate(one, id=str(user.id)), seat.sign(one)
        parts.append(Form(action, text, (choice,), hidden, token=token, title=text, opener=text))
        if self._invites:
            text = "With it the person chooses a password, if they have none or have lost it."
            parts.append(
                seat.offer(
                    f"{path}/link", "Make a link", text=text, hidden=hidden, opener="New link"
                )
            )
        text = "Calls with keys that the person has made here are refused from then on."
        title = "Remove the member"
        parts.append(
            seat.offer(
                f"{path}/remove", title, text=text, hidden=hidden, opener="Remove", is_danger=True
            )
        )
        return Screen(user.display_name, parts, back=back)

    async def change(self, call: Call, seat: Seat, values: Values) -> Response:
        """Change a role from the list."""
        await self._change(call, seat, values)
        return redirect(f"{seat.home}/members?done=changed")

    async def change_one(self, call: Call, seat: Seat, values: Values) -> Response:
        """Change the role of the member whose page has the form."""
        await self._change(call, seat, values)
        query = {"id": values.get("id", ""), "done": "changed"}
        return redirect(locate(f"{seat.home}/members/one", **query))

    async def _change(self, call: Call, seat: Seat, values: Values) -> None:
        wire_id = values.get("id", "")
        path = f"{MANAGEMENT}/members/{wire_id if wire_id.isdigit() else '-'}"
        await self._api.write(call, seat, "PATCH", path, {"role": values.get("role", "")})

    async def invite(self, invitations: Invitations, _: Call, seat: Seat, values: Values) -> Screen:
        """Invite a person; the link is on the page that answers, and nowhere else."""
        seat.require(Act.APPOINT)
        email, name = values.get("email", "").strip(), values.get("name", "").strip()
        problems: dict[str, list[str]] = {}
        if not _EMAIL.fullmatch(email) or not 3 <= len(email) <= MAX_EMAIL:
            problems["email"] = ["must be an email address"]
        if len(name) > MAX_NAME or not name.isprintable():
            problems["name"] = [f"may have at most {MAX_NAME} printable characters"]
        role: Role | None = next((one for one in _ROLES if one == values.get("role")), None)
        if role is None:
            problems["role"] = [f"must be one of {', '.join(_ROLES)}"]
        if problems or role is None:
            raise refuse_fields(problems)
        shown = name or email.partition("@")[0][:MAX_NAME]
        invitation = await invitations.invite(seat.principal, email, shown, role)
        inviter = seat.signed_in.user.display_name
        subject = f"Invitation to {seat.account.display_name}"
        text = f"{inviter} invites you to the account {seat.account.display_name}"
        return await self._show_link(seat, invitation, subject, text)

    async def renew(self, invitations: Invitations, _: Call, seat: Seat, values: Values) -> Screen:
        """Make a new link for a member, which takes the place of an earlier one."""
        seat.require(Act.APPOINT)
        invitation = await invitations.renew(seat.principal, values.get("id", ""))
        inviter = seat.signed_in.user.display_name
        text = f"{inviter} lets you choose a new password"
        return await self._show_link(seat, invitation, "A new password", text)

    async def remove(self, _: Call, seat: Seat, values: Values) -> Response:
        """Take a member out of the account."""
        seat.require(Act.APPOINT)
        await self._members.remove(seat.principal, values.get("id", ""))
        return redirect(f"{seat.home}/members?done=removed")

    async def _show_link(
        self, seat: Seat, invitation: Invitation, subject: str, text: str
    ) -> Screen:
        """Return the page with the link, which is sent too where there is a mail server."""
        user, back = invitation.user, ("Members", f"{seat.home}/members")
        who = f"{user.display_name} ({user.email})"
        if not invitation.token:
            notice = f"{who} is a member now, and signs in as before."
            return Screen("Invitation", [Notice(notice)], back=back)
        link = locate_link(self._base_url, invitation.token)
        parts: list[Part] = []
        if self._mailer is not None:
            parts.append(await self._send(self._mailer, seat, user.email, subject, text, link))
        parts += [
            Notice(f"Copy the link for {who} now: it is shown only this once."),
            Code("Link", link, is_secret=True),
            Hint(
                "Pass it on to this person alone: who opens it first chooses the password. It"
                f" works once, and for {LINK_HOURS} hours; a new link ends it."
            ),
        ]
        return Screen("Link", parts, back=back)

    async def _send(
        self, mailer: Mailer, seat: Seat, email: str, subject: str, text: str, link: str
    ) -> Notice:
        body = (
            f"{_make_plain(text)} on the Model Gateway.\n\n"
            f"Choose your password here:\n{link}\n\n"
            f"The link works once, and for {LINK_HOURS} hours. If you did not expect this mail,"
            " you need not do anything.\n"
        )
        try:
            await mailer.send(seat.account.name, email, _make_plain(subject), body)
        except MailFailed as failure:
            text = f"The mail to {email} was not sent: {failure} Pass the link on yourself."
            return Notice(text, is_problem=True)
        return Notice(f"The link was sent to {email}.")


def _make_plain(text: str) -> str:
    """Return a text for a mail: names are of tenants, who may not add lines or addresses to it."""
    kept = "".join(letter if letter.isprintable() else " " for letter in text)
    return kept.replace("://", " ")


def _find_state(user: UserRecord | None, suspended: bool) -> str:
    """Return suspended, invited, expired (an invitation), or active."""
    if suspended:
        return "suspended"
    if user is None or user.password_hash is not None or user.identity is not None:
        return "active"
    if user.password_link is None:
        return "active"
    return "invited" if user.password_link.expires_at > CLOCK.time() else "expired"


def _offer_changes(
    seat: Seat, path: str, members: Sequence[Any], *, invites: bool
) -> Iterator[Form]:
    """Yield the forms by which people are invited, and get other roles."""
    if invites:
        new = (
            Field("email", "Email address", "email", required=True, most=MAX_EMAIL),
            Field("name", "Name", hint="Empty: what is before the @.", most=MAX_NAME),
            _choose_role(seat, "Role", "member"),
        )
        yield _offer(seat, f"{path}/invite", "Invite", new, "Invite a person")
    role = _choose_role(seat, "New role", "member")
    # an admin changes no owner
    people = [
        (str(each["id"]), f"{each['name']} ({each['email']})")
        for each in members
        if each["role"] in dict(role.options)
    ]
    if people:
        fields = (Field("id", "Member", "select", options=people), role)
        yield _offer(seat, path, "Change a role", fields, "Change a role")


def _choose_role(seat: Seat, label: str, role: str) -> Field:
    may_own = find_grant(Act.APPOINT, seat.role) is not Grant.NOT_OWNERS
    roles = [(one, one) for one in _ROLES if may_own or one != "owner"]
    return Field("role", label, "select", role, options=roles)


def _offer(
    seat: Seat, path: str, submit: str, fields: Sequence[Field], opener: str, **more: Any
) -> Form:
    return seat.offer(path, submit, fields, title=opener, opener=opener, **more)
