"""Invitations and links with which people choose their password."""

import asyncio
import re
from types import SimpleNamespace

import pytest

from gateway_core.accounts import passwords
from gateway_core.accounts.authentication import Principal
from gateway_core.accounts.invitations import INVITATION_ALLOWANCES, Invitations
from gateway_core.accounts.password_links import (
    LINK_HOURS,
    locate_link,
    make_link,
    may_link,
    parse_link,
)
from gateway_core.accounts.password_rules import PasswordRefused
from gateway_core.accounts.sign_in import LinkRefused
from gateway_core.accounts.throttle import Throttle
from gateway_core.api.errors import Conflict, Forbidden, NotFound, TooManyCalls, Unavailable
from gateway_core.kube.clock import CLOCK
from gateway_core.kube.errors import WriteOutcomeUnknown
from tests.fakes.kubernetes import Fault
from tests.unit.accounts.people import ADDRESS, CHOSEN, ID_KEY, PASSWORD, Scene

ANN = "ann@example.com"


class Accounts(Scene):
    """Olga owns `one`, Otto owns `two`; Ann of `Scene` is in no account."""

    def __init__(self):
        super().__init__()
        self.invitations = Invitations(
            self.kube, self.users, Throttle(self.store, INVITATION_ALLOWANCES, ID_KEY)
        )
        self.put_member("olga", [("one", "owner")])
        self.put_member("otto", [("two", "owner")])

    def put_member(self, name, roles=(), *, email=None, **spec):
        memberships = [{"accountName": account, "role": role} for account, role in roles]
        email = email or f"{name}@example.com"
        self.put(name, email=email, memberships=memberships, **spec)

    def act(self, name, account):
        user = self.users.get(name)
        key = SimpleNamespace(tokens=(), creator=name)
        return Principal(SimpleNamespace(name=account), key, user.find_role(account), user)

    async def invite(self, email, *, by="olga", to="one", role="member"):
        return await self.invitations.invite(self.act(by, to), email, "Some One", role)

    async def renew(self, name, *, by="olga", of="one"):
        wire_id = str(self.users.get(name).id)
        return await self.invitations.renew(self.act(by, of), wire_id)

    async def use(self, token, chosen=CHOSEN):
        return await self.service.use_link(token, chosen, ADDRESS)

    def spec(self, name):
        return self.kube.find("gatewayusers", name)["spec"]


@pytest.fixture
def accounts():
    return Accounts()


@pytest.fixture
def fast(monkeypatch):
    """Hash without work: tests of many links take no time for hashes."""
    form = "$argon2id$v=19$m=19456,t=2,p=1$c2FsdA${}"
    monkeypatch.setattr(passwords, "hash_password", form.format)
    monkeypatch.setattr(
        passwords, "_verify", lambda stored, text: stored.endswith(text) or text == PASSWORD
    )


async def test_invited_person_chooses_a_password_and_signs_in_with_it(accounts):
    invitation = await accounts.invite(" Bea@Example.com ", role="viewer")
    assert invitation.user.roles == (("one", "viewer"),)
    entry = await accounts.use(invitation.token)
    assert await accounts.who(entry.token) == invitation.user.name
    assert "passwordLink" not in accounts.spec(invitation.user.name)
    again = await accounts.enter("bea@example.com", CHOSEN)
    assert await accounts.who(again.token) == invitation.user.name
    # the browser is known from then on
    assert (await accounts.enter("bea@example.com", CHOSEN, mark=entry.mark)).token


async def test_object_has_the_digest_alone_and_logs_have_nothing(accounts, caplog, capsys):
    invitation = await accounts.invite("bea@example.com")
    name, secret = parse_link(invitation.token)
    stored = accounts.kube.find("gatewayusers", name)
    assert secret not in str(stored)
    assert re.fullmatch(r"[0-9a-f]{64}", stored["spec"]["passwordLink"]["digest"])
    assert stored["spec"]["passwordLink"]["createdBy"] == "olga"
    await accounts.use(invitation.token)
    with pytest.raises(LinkRefused):
        await accounts.use(invitation.token)
    said = caplog.text + "".join(capsys.readouterr())
    assert secret not in said + str(accounts.store.values)
    assert len(secret) == 43


@pytest.mark.usefixtures("fast")
async def test_link_works_once_and_keeps_working_after_a_refused_password(accounts):
    token = (await accounts.invite("bea@example.com")).token
    for chosen in ("short", "password1234", "Bea@example.com"):
        with pytest.raises(PasswordRefused):
            await accounts.use(token, chosen)
    await accounts.use(locate_link("https://gw.example.com/", token))
    with pytest.raises(LinkRefused):
        await accounts.use(token, "another good passphrase")
    assert await accounts.sign_in("bea@example.com", CHOSEN)


@pytest.mark.usefixtures("fast")
async def test_of_concurrent_uses_one_succeeds(accounts):
    token = (await accounts.invite("bea@example.com")).token
    chosen = [f"{CHOSEN} {n}" for n in range(4)]
    entries = await asyncio.gather(
        *(accounts.use(token, each) for each in chosen), return_exceptions=True
    )
    won = [n for n, entry in enumerate(entries) if not isinstance(entry, Exception)]
    assert len(won) == 1
    assert all(isinstance(entry, LinkRefused) for n, entry in enumerate(entries) if n not in won)
    assert await accounts.sign_in("bea@example.com", chosen[won[0]])


@pytest.mark.usefixtures("fast")
async def test_lost_answers_to_writes_change_nothing(accounts):
    lost = Fault(WriteOutcomeUnknown("lost"), applied=True)
    accounts.kube.order_faults("create", lost)
    invitation = await accounts.invite("bea@example.com")
    accounts.kube.order_faults("patch", lost)
    renewed = await accounts.renew(invitation.user.name)
    accounts.kube.order_faults("patch", lost)
    entry = await accounts.use(renewed.token)
    assert await accounts.who(entry.token) == invitation.user.name
    with pytest.raises(LinkRefused):
        await accounts.use(renewed.token, f"{CHOSEN} again")


@pytest.mark.usefixtures("fast")
async def test_link_of_a_process_that_was_killed_after_the_write_is_used(accounts):
    token = (await accounts.invite("bea@example.com")).token
    accounts.store.down = True
    with pytest.raises(Unavailable):
        await accounts.use(token)
    accounts.store.down = False
    begin = accounts.service._sessions.begin
    accounts.service._sessions.begin = None
    with pytest.raises(TypeError):
        await accounts.use(token)
    accounts.service._sessions.begin = begin
    with pytest.raises(LinkRefused):
        await accounts.use(token, f"{CHOSEN} again")
    assert await accounts.sign_in("bea@example.com", CHOSEN)


@pytest.mark.usefixtures("fast")
async def test_link_expires_after_72_hours(accounts, monkeypatch):
    invitation = await accounts.invite("bea@example.com")
    begin = CLOCK.time()
    monkeypatch.setattr(
        "gateway_core.accounts.sign_in.CLOCK",
        SimpleNamespace(time=lambda: begin + LINK_HOURS * 3600 + 1, now=CLOCK.now),
    )
    with pytest.raises(LinkRefused):
        await accounts.use(invitation.token)
    assert LINK_HOURS == 72


@pytest.mark.usefixtures("fast")
async def test_newer_link_replaces_the_earlier_one(accounts):
    first = (await accounts.invite("bea@example.com")).token
    second = await accounts.invite("BEA@example.com", role="member")
    third = (await accounts.renew(second.user.name)).token
    for token in (first, second.token):
        with pytest.raises(LinkRefused):
            await accounts.use(token)
    assert (await accounts.use(third)).token


@pytest.mark.parametrize(
    "token",
    ["", "x", "olga." + "A" * 43, "nobody." + "A" * 43, "Olga." + "A" * 43, "a" * 5000, "\ud800"],
)
@pytest.mark.usefixtures("fast")
async def test_made_up_links_are_refused_alike(accounts, token):
    with pytest.raises(LinkRefused) as error:
        await accounts.use(token)
    assert error.value.message == LinkRefused().message


async def test_same_hashing_is_done_for_links_of_nobody(accounts, monkeypatch):
    hashed = []
    monkeypatch.setattr(passwords, "hash_password", lambda text: hashed.append(text) or "$x")
    for token in ("", "nobody." + "A" * 43, "olga." + "A" * 43):
        with pytest.raises(LinkRefused):
            await accounts.use(token)
    assert len(hashed) == 3


@pytest.mark.usefixtures("fast")
async def test_tries_of_an_address_are_limited_before_anything_is_read(accounts):
    for _ in range(60):
        with pytest.raises(LinkRefused):
            await accounts.use("x")
    token = (await accounts.invite("bea@example.com")).token
    with pytest.raises(TooManyCalls):
        await accounts.use(token)
    accounts.store.now += 60
    assert await accounts.use(token)


@pytest.mark.usefixtures("fast")
async def test_sessions_end_when_a_recovery_link_is_used(accounts):
    accounts.put_member("bea", [("one", "member")])
    before = await accounts.sign_in("bea@example.com")
    token = (await accounts.renew("bea")).token
    # until it is used the old password works
    assert await accounts.who(before) == "bea"
    entry = await accounts.use(token)
    assert await accounts.who(before) is None
    assert await accounts.who(entry.token) == "bea"


@pytest.mark.parametrize(
    ("name", "roles", "suspended"),
    [
        ("bea", [("one", "member"), ("two", "viewer")], False),
        ("bea", [], False),
        ("bea", [("one", "member")], True),
        ("olga", [("one", "member")], False),
        ("olga", [("one", "owner")], True),
    ],
)
async def test_link_ends_with_the_rights_of_its_maker(accounts, name, roles, suspended):
    accounts.put_member("bea", [("one", "member")])
    token = (await accounts.renew("bea")).token
    link = accounts.spec("bea")["passwordLink"] if name == "bea" else None
    accounts.put_member(name, roles, suspended=suspended, passwordLink=link)
    with pytest.raises(LinkRefused):
        await accounts.use(token)


async def test_owner_makes_no_link_for_people_of_other_accounts(accounts):
    accounts.put_member("bea", [("one", "member"), ("two", "viewer")])
    with pytest.raises(Forbidden, match="all of whose accounts you own"):
        await accounts.renew("bea")
    with pytest.raises(NotFound):
        await accounts.renew("otto")
    with pytest.raises(Forbidden, match="your own password"):
        await accounts.renew("olga")


async def test_admin_invites_again_but_recovers_nobody(accounts):
    accounts.put_member("adam", [("one", "admin")])
    invited = await accounts.invite("bea@example.com", by="adam")
    assert (await accounts.renew(invited.user.name, by="adam")).token
    accounts.put_member("cleo", [("one", "member")])
    with pytest.raises(Forbidden):
        await accounts.renew("cleo", by="adam")
    for role, by in (("owner", "adam"), ("member", "cleo")):
        with pytest.raises(Forbidden):
            await accounts.invite("dora@example.com", by=by, role=role)


async def test_person_of_single_sign_on_gets_no_password(accounts):
    identity = {"issuer": "https://id.example.com", "subject": "1"}
    accounts.put("bea", email="bea@example.com", passwordHash=None, singleSignOn=identity)
    invitation = await accounts.invite("bea@example.com")
    assert (invitation.token, invitation.user.roles) == ("", (("one", "member"),))
    with pytest.raises(Conflict, match="single sign-on"):
        await accounts.renew("bea")


async def test_user_of_another_account_is_not_invited(accounts):
    with pytest.raises(Conflict, match="administrator of the installation"):
        await accounts.invite("otto@example.com")
    pending = await accounts.invite("bea@example.com", by="otto", to="two")
    with pytest.raises(Conflict):
        await accounts.invite("bea@example.com")
    assert accounts.users.get(pending.user.name).roles == (("two", "member"),)
    assert accounts.users.get("otto").roles == (("two", "owner"),)


async def test_owner_of_both_accounts_adds_a_person_without_a_link(accounts):
    accounts.put_member("both", [("one", "owner"), ("two", "owner")])
    accounts.put_member("bea", [("two", "member")])
    invitation = await accounts.invite("bea@example.com", by="both")
    assert invitation.token == ""
    assert dict(invitation.user.roles) == {"one": "member", "two": "member"}
    assert accounts.spec("bea")["passwordHash"]


@pytest.mark.usefixtures("fast")
async def test_person_of_no_account_needs_a_new_password(accounts):
    invitation = await accounts.invite(ANN)
    assert "passwordHash" not in accounts.spec("ann")
    assert await accounts.use(invitation.token)


async def test_member_is_not_invited_again_and_ambiguous_emails_are_refused(accounts):
    accounts.put_member("bea", [("one", "member")])
    with pytest.raises(Conflict, match="member already"):
        await accounts.invite("bea@example.com")
    accounts.put_member("bea2", [("two", "member")], email="BEA@example.com")
    with pytest.raises(Conflict, match="Several users"):
        await accounts.invite("bea@example.com")


async def test_concurrent_invitations_make_one_user(accounts):
    accounts.users.cut = True
    made = await asyncio.gather(*(accounts.invite("bea@example.com") for _ in range(3)))
    names = {invitation.user.name for invitation in made}
    assert len(names) == 1
    digest = accounts.spec(names.pop())["passwordLink"]["digest"]
    good = [one for one in made if one.user.password_link.digest == digest]
    assert len(good) >= 1
    assert await accounts.use(good[-1].token)


async def test_invitations_are_bounded_by_email_and_need_redis(accounts):
    for _ in range(5):
        await accounts.invite("bea@example.com")
    with pytest.raises(TooManyCalls):
        await accounts.invite("BEA@example.com")
    accounts.store.down = True
    with pytest.raises(Unavailable):
        await accounts.invite("cleo@example.com")
    with pytest.raises(Unavailable):
        await accounts.use("x")


async def test_changes_are_noted_for_the_audit(accounts):
    invitation = await accounts.invite("bea@example.com")
    name = invitation.user.name
    token = (await accounts.renew(name)).token
    await accounts.use(token)
    noted = [(change.by, change.text) for change in accounts.users.get(name).changes]
    assert noted[:3] == [
        ("user/olga", "invited as member"),
        ("user/olga", "link for a new password made"),
        (f"user/{name}", "password chosen by a link"),
    ]


@pytest.mark.parametrize(
    ("maker", "person", "has_password", "allowed"),
    [
        ({"a": "owner"}, {"a": "member"}, True, True),
        ({"a": "owner"}, {"a": "owner"}, True, True),
        ({"a": "owner"}, {"a": "member", "b": "viewer"}, True, False),
        ({"a": "owner", "b": "admin"}, {"a": "member", "b": "viewer"}, True, False),
        ({"a": "owner", "b": "admin"}, {"a": "member", "b": "viewer"}, False, True),
        ({"a": "admin"}, {"a": "member"}, True, False),
        ({"a": "admin"}, {"a": "admin"}, False, True),
        ({"a": "admin"}, {"a": "owner"}, False, False),
        ({"a": "member"}, {"a": "viewer"}, False, False),
        ({"a": "owner"}, {}, False, False),
        ({}, {"a": "viewer"}, False, False),
    ],
)
def test_maker_of_a_link_governs_all_accounts_of_the_person(maker, person, has_password, allowed):
    given = tuple(maker.items()), tuple(person.items())
    assert may_link(*given, has_password=has_password) is allowed


def test_link_is_parsed_from_an_address_or_alone():
    link = make_link("ann", CLOCK.now())
    name, secret = parse_link(link.token)
    assert (name, len(secret)) == ("ann", 43)
    assert parse_link(f"  {locate_link('https://gw.example.com', link.token)}\n") == (name, secret)
    assert parse_link(link.token + "x") is None
    assert link.field["digest"] != secret
