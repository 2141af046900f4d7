"""Grants: their bounds, rotation and end, also while the record is away."""

import asyncio

import pytest

from gateway_core.accounts.changes import read_ending
from gateway_core.accounts.records import project_account, project_user
from gateway_core.api.errors import OAuthError, TooManyCalls, Unavailable
from gateway_core.api.ids import IdMint
from gateway_core.api.times import parse_time
from gateway_core.kube.errors import KubernetesUnavailable, RequestRejected, WriteOutcomeUnknown
from gateway_core.kube.read_through import ReadThrough
from gateway_core.oauth import room
from gateway_core.oauth.authorization import AuthorizationRequest
from gateway_core.oauth.codes import CodeStore
from gateway_core.oauth.grants import Grants
from gateway_core.oauth.records import ClientRecord, project_client, project_grant
from gateway_core.oauth.revocation import Revocations
from gateway_core.oauth.room import ClientIndex, choose_spare_of_many
from gateway_core.oauth.rotation import GRACE_SECONDS, Lifetimes
from gateway_core.oauth.tokens import TokenMint
from tests.fakes.informer import FakeInformer
from tests.fakes.kubernetes import FakeKubernetes, Fault
from tests.fakes.transient import FakeTransient
from tests.servers.browser import make_pkce

ID_KEY = b"i" * 32
REDIRECT = "https://app.example.com/cb"
SITE = ClientRecord("https://app.example.com/c.json", "Site", (REDIRECT,), authorized=True)
NOW = 1_800_000_000.0
AFTER_GRACE = GRACE_SECONDS + 0.5


class Scene:
    """Ann and Olga, the owner, in the account `demo`. `second` is another replica."""

    def __init__(self, **lifetimes):
        self.kube = FakeKubernetes()
        self.now = NOW
        self.store = FakeTransient()
        self.table = FakeInformer(self.kube, "gatewaygrants", project_grant)
        self.clients = FakeInformer(self.kube, "gatewayoauthclients", project_client)
        self.users = FakeInformer(self.kube, "gatewayusers", project_user)
        self.accounts = FakeInformer(self.kube, "gatewayaccounts", project_account)
        self.grants, self.second = (self.open_replica(**lifetimes) for _ in range(2))
        owner = {"name": "Olga", "email": "olga@example.com"}
        for account in ("demo", "other"):
            self.put("gatewayaccounts", account, displayName=account, owner=owner)
        for name, role in (("ann", "member"), ("olga", "owner"), ("mona", "member")):
            self.put_user(name, role)

    def open_replica(self, **lifetimes):
        return Grants(
            self.kube,
            CodeStore(self.store),
            self.table,
            ClientIndex(self.clients),
            ReadThrough(self.accounts, self.kube, "gatewayaccounts"),
            ReadThrough(self.users, self.kube, "gatewayusers"),
            IdMint(ID_KEY),
            TokenMint(ID_KEY),
            {1: b"p" * 32},
            lifetimes=Lifetimes(**lifetimes),
            clock=lambda: self.now,
        )

    def put(self, plural, name, **spec):
        self.kube.put(plural, {"metadata": {"name": name}, "spec": spec})

    def put_user(self, name, role):
        roles = [{"accountName": "demo", "role": role}, {"accountName": "other", "role": "member"}]
        self.put(
            "gatewayusers", name, displayName=name, email=f"{name}@example.com", memberships=roles
        )

    def register(self, name="a", **spec):
        spec = {"clientName": "App", "redirectUris": [REDIRECT], "dynamic": True, **spec}
        self.put("gatewayoauthclients", f"client-{name}", **spec)
        return self.clients.get(f"client-{name}")

    def ask(self, client=SITE):
        verifier, challenge = make_pkce()
        scopes = ("mcp:read", "mcp:tasks")
        request = AuthorizationRequest(
            client, REDIRECT, True, None, scopes, challenge, "https://mcp", frozenset(), ()
        )
        return request, verifier

    async def get_code(self, client=SITE, user="ann", account="demo"):
        request, verifier = self.ask(client)
        code = await self.grants.issue_code(request, user, account)
        return {"code": code, "code_verifier": verifier, "redirect_uri": REDIRECT}

    async def get_tokens(self, client=SITE, user="ann", account="demo"):
        return await self.grants.exchange(client, await self.get_code(client, user, account))

    async def refresh(self, tokens, client=SITE, replica=None, **form):
        form = {"refresh_token": tokens.refresh_token, **form}
        return await (replica or self.grants).refresh(client, form)

    async def is_refused(self, call, code="invalid_grant"):
        with pytest.raises(OAuthError) as error:
            await call
        return error.value.code == code

    def names(self):
        return [obj["metadata"]["name"] for obj in self.list_current()]

    def list_current(self):
        """Those that give access; the operator removes deleted ones once they are archived."""
        grants = self.kube.list_objects("gatewaygrants")
        return [obj for obj in grants if "deletionTimestamp" not in obj["metadata"]]

    def list_ended(self):
        grants = self.kube.list_objects("gatewaygrants")
        return [read_ending(obj) for obj in grants if "deletionTimestamp" in obj["metadata"]]


@pytest.fixture
def scene():
    return Scene()


# reuse and replay


async def test_code_that_redis_returns_twice_is_a_replay(scene):
    form = await scene.get_code()
    kept = dict(scene.store.values)
    await scene.grants.exchange(SITE, form)
    assert len(scene.names()) == 1
    # a replica of Redis that took over has not seen the removal
    scene.store.values = kept
    assert await scene.is_refused(scene.grants.exchange(SITE, form))
    assert scene.names() == []


@pytest.mark.parametrize(
    "fault",
    [
        Fault(KubernetesUnavailable("away")),
        Fault(WriteOutcomeUnknown("lost")),
        Fault(WriteOutcomeUnknown("lost"), applied=True),
    ],
)
async def test_reuse_revokes_though_a_deletion_fails(scene, fault):
    first = await scene.get_tokens()
    await scene.refresh(first)
    scene.now += AFTER_GRACE
    scene.kube.order_faults("delete", fault, fault)
    assert await scene.is_refused(scene.refresh(first))
    assert scene.names() == []


async def test_reuse_while_the_record_is_away_revokes_as_soon_as_it_is_back(scene):
    first = await scene.get_tokens()
    second = await scene.refresh(first)
    scene.now += AFTER_GRACE
    scene.kube.away = True
    assert await scene.is_refused(scene.refresh(first))
    scene.kube.away = False
    assert len(scene.names()) == 1
    assert await scene.is_refused(scene.refresh(second))
    await asyncio.gather(*scene.grants._revocations._ending.values())
    assert scene.names() == []


async def test_grants_that_wait_for_their_end_are_bounded(monkeypatch):
    monkeypatch.setattr("gateway_core.oauth.revocation.MOST_ENDING", 2)
    kube = FakeKubernetes()
    kube.away = True
    revocations = Revocations(kube)
    await asyncio.gather(*(revocations.end(f"grant-{n}", "x") for n in range(5)))
    waiting = [n for n in range(5) if revocations.is_ending(f"grant-{n}")]
    assert len(waiting) == 2
    kube.away = False
    await asyncio.gather(*revocations._ending.values())
    assert not any(revocations.is_ending(f"grant-{n}") for n in waiting)


async def test_known_reuse_notes_its_reason_before_the_deletion(scene):
    first = await scene.get_tokens()
    await scene.refresh(first)
    scene.now += AFTER_GRACE
    scene.kube.calls.clear()
    assert await scene.is_refused(scene.refresh(first))
    assert [method for method, _ in scene.kube.calls] == ["get", "patch", "delete"]
    [end] = scene.list_ended()
    assert (end.by, end.text) == ("gateway/", "access ended: a refresh token was used twice")


async def test_another_client_cannot_end_a_grant_by_a_spent_token(scene):
    first = await scene.get_tokens()
    second = await scene.refresh(first)
    for seconds in (0, AFTER_GRACE):
        scene.now += seconds
        assert await scene.is_refused(scene.refresh(first, scene.register()))
        assert await scene.is_refused(scene.refresh(second, scene.register()))
    assert len(scene.names()) == 1


# repetitions


async def test_repetition_within_the_grace_gets_the_same_tokens_at_any_replica(scene):
    first = await scene.get_tokens()
    second = await scene.refresh(first)
    [stored] = scene.kube.list_objects("gatewaygrants")
    for seconds in (0, 3, GRACE_SECONDS - 3):
        scene.now += seconds
        for replica in (scene.grants, scene.second):
            again = await scene.refresh(first, replica=replica)
            assert again.access_token == second.access_token
            assert again.refresh_token == second.refresh_token
    assert again.expires_in == second.expires_in - GRACE_SECONDS
    assert scene.kube.list_objects("gatewaygrants") == [stored]
    third = await scene.refresh(second)
    assert third.refresh_token not in (first.refresh_token, second.refresh_token)


async def test_concurrent_refreshes_at_two_replicas_get_one_successor(scene):
    first = await scene.get_tokens()
    replicas = [scene.grants, scene.second] * 5
    answers = await asyncio.gather(*(scene.refresh(first, replica=each) for each in replicas))
    assert len({(each.access_token, each.refresh_token) for each in answers}) == 1
    assert await scene.refresh(answers[0])


async def test_token_of_which_the_answer_was_lost_can_be_refreshed_again(scene):
    first = await scene.get_tokens()
    # the process ends between the write and the answer
    scene.kube.order_faults("patch", Fault(SystemExit(), applied=True))
    with pytest.raises(SystemExit):
        await scene.refresh(first)
    scene.now += 3
    second = await scene.refresh(first, replica=scene.second)
    assert await scene.refresh(second)


@pytest.mark.parametrize("seconds", [0, GRACE_SECONDS - 1])
async def test_replay_after_the_successor_was_used_ends_the_family(scene, seconds):
    first = await scene.get_tokens()
    second = await scene.refresh(first)
    third = await scene.refresh(second)
    scene.now += seconds
    assert await scene.is_refused(scene.refresh(first, replica=scene.second))
    assert scene.names() == []
    assert await scene.is_refused(scene.refresh(third))


async def test_replay_after_the_grace_ends_the_family(scene):
    first = await scene.get_tokens()
    second = await scene.refresh(first)
    scene.now += GRACE_SECONDS - 1
    assert (await scene.refresh(first)).refresh_token == second.refresh_token
    # repetitions do not prolong it
    scene.now += 1.5
    assert await scene.is_refused(scene.refresh(first))
    assert await scene.is_refused(scene.refresh(second))
    assert scene.names() == []


async def test_repetitions_with_other_scopes_are_bounded_and_never_grow(scene):
    first = await scene.get_tokens()
    whole = await scene.refresh(first)
    for _ in range(3):
        narrow = await scene.refresh(first, scope="mcp:read")
        assert (narrow.scopes, narrow.refresh_token) == (("mcp:read",), whole.refresh_token)
        assert narrow.access_token != whole.access_token
    [obj] = scene.kube.list_objects("gatewaygrants")
    scopes = [token["scopes"] for token in obj["spec"]["accessTokens"]]
    assert scopes == [["mcp:read", "mcp:tasks"]] * 2 + [["mcp:read"]]
    assert await scene.is_refused(scene.refresh(first, scope="admin"), "invalid_scope")
    assert (await scene.refresh(first)).access_token == whole.access_token


async def test_access_token_that_was_revoked_alone_leaves_its_siblings(scene):
    first = await scene.get_tokens()
    whole = await scene.refresh(first)
    narrow = await scene.refresh(first, scope="mcp:read")
    await scene.grants.revoke_token(SITE, narrow.access_token)
    assert (await scene.refresh(first)).access_token == whole.access_token
    scene.now += 1
    assert (await scene.refresh(first, scope="mcp:read")).access_token != narrow.access_token


async def test_grant_of_an_older_release_has_no_grace(scene):
    first = await scene.get_tokens()
    await scene.refresh(first)
    [obj] = scene.kube.list_objects("gatewaygrants")
    del obj["spec"]["refreshToken"]["issuedTime"]
    scene.kube.put("gatewaygrants", obj)
    assert await scene.is_refused(scene.refresh(first))
    assert scene.names() == []


# lives


async def test_tokens_do_not_promise_more_than_the_life_of_the_grant():
    scene = Scene(family=5000)
    tokens = await scene.get_tokens()
    assert tokens.expires_in == 3600
    scene.now += 4000
    assert (await scene.refresh(tokens)).expires_in == 1000
    short = Scene(family=600)
    assert (await short.get_tokens()).expires_in == 600


@pytest.mark.parametrize("seconds", [30 * 24 * 3600, 180 * 24 * 3600])
async def test_consent_is_asked_again_when_the_grant_has_expired(scene, seconds):
    await scene.get_tokens()
    request, _ = scene.ask()
    assert scene.grants.has_given(request, "ann", "demo")
    scene.now += seconds
    assert not scene.grants.has_given(request, "ann", "demo")


# bounds


async def test_registered_client_has_one_grant_of_a_user_and_account(scene):
    client = scene.register()
    first = await scene.get_tokens(client)
    second = await scene.get_tokens(client)
    await scene.get_tokens(client, account="other")
    await scene.get_tokens(client, user="mona")
    assert len(scene.names()) == 3
    assert await scene.is_refused(scene.refresh(first, client))
    await scene.refresh(second, client)


async def test_client_id_of_many_installations_has_a_few(scene):
    for _ in range(room.MOST_SHARED + 3):
        await scene.get_tokens()
        scene.now += 1
    assert len(scene.names()) == room.MOST_SHARED


async def test_grants_of_a_user_are_bounded(scene, monkeypatch):
    monkeypatch.setattr(room, "MOST_GRANTS", 3)
    for n in range(6):
        await scene.get_tokens(scene.register(f"a{n}"))
    assert len(scene.names()) == 3


async def test_grants_of_an_account_are_bounded_and_no_user_displaces_another(scene, monkeypatch):
    monkeypatch.setattr(room, "MOST_ACCOUNT_GRANTS", 4)
    await scene.get_tokens(scene.register("mona"), user="mona")
    for n in range(8):
        await scene.get_tokens(scene.register(f"a{n}"))
    users = [obj["spec"]["userName"] for obj in scene.list_current()]
    assert sorted(users) == ["ann"] * 3 + ["mona"]


async def test_spare_grants_are_those_of_who_has_most(scene):
    for user, number in (("ann", 3), ("mona", 2)):
        for n in range(number):
            await scene.get_tokens(scene.register(f"{user}{n}"), user=user)
    spare = choose_spare_of_many(scene.grants.list_in("demo"), 3)
    assert [grant.user for grant in spare] in (["ann", "ann"], ["ann", "mona"])


async def test_clients_that_one_user_leaves_behind_are_bounded(scene, monkeypatch):
    monkeypatch.setattr(room, "MOST_IDLE_CLIENTS", 3)
    for n in range(3):
        scene.register(f"old{n}", authorized=True, authorizedBy="ann")
    scene.register("bob", authorized=True, authorizedBy="bob")
    with pytest.raises(TooManyCalls):
        await scene.get_tokens(scene.register("new"))
    assert scene.clients.get("client-new").authorized is False
    await scene.get_tokens(scene.register("new"), user="mona")
    await scene.get_tokens(scene.clients.get("client-old0"))
    await scene.get_tokens(scene.register("newer"))


async def test_grant_dates_its_client(scene):
    client = scene.register()
    await scene.get_tokens(client)
    spec = scene.kube.find("gatewayoauthclients", "client-a")["spec"]
    assert (spec["authorized"], spec["authorizedBy"]) == (True, "ann")
    scene.now += 100
    await scene.get_tokens(scene.clients.get("client-a"), user="mona")
    spec = scene.kube.find("gatewayoauthclients", "client-a")["spec"]
    assert spec["authorizedBy"] == "ann"
    assert parse_time(spec["lastAuthorizedTime"]).timestamp() == NOW + 100


# revocation by users


@pytest.mark.parametrize(
    ("user", "account", "revokes"),
    [("mona", "demo", False), ("olga", "other", False), ("olga", "demo", True)],
)
async def test_owner_of_the_account_alone_revokes_grants_of_others(scene, user, account, revokes):
    await scene.get_tokens(scene.register(), account=account)
    [name] = scene.names()
    assert await scene.grants.revoke(scene.users.get(user), name) is revokes
    assert scene.names() == ([] if revokes else [name])
    assert [end.by for end in scene.list_ended()] == [f"user/{user}"] * revokes


async def test_deletion_goes_on_where_its_reason_cannot_be_noted(scene):
    await scene.get_tokens()
    [name] = scene.names()
    scene.kube.order_faults("patch", Fault(RequestRejected("a policy refuses")))
    assert await scene.grants.revoke(scene.users.get("ann"), name)
    [end] = scene.list_ended()
    assert (end.by, end.text) == ("client/", "deleted")


async def test_deleted_grant_that_a_replica_still_has_gives_no_tokens(scene):
    tokens = await scene.get_tokens()
    [name] = scene.names()
    scene.table.cut = True
    await scene.kube.delete("gatewaygrants", name)
    assert await scene.is_refused(scene.refresh(tokens))


async def test_grant_that_another_replica_made_can_be_revoked(scene):
    await scene.get_tokens()
    [name] = scene.names()
    scene.table.forget(name)
    assert await scene.grants.revoke(scene.users.get("ann"), name)
    assert scene.names() == []
    assert not await scene.grants.revoke(scene.users.get("ann"), name)


async def test_revocation_ends_all_grants_of_the_same_application(scene):
    await scene.get_tokens()
    await scene.get_tokens()
    await scene.get_tokens(account="other")
    assert await scene.grants.revoke(scene.users.get("ann"), scene.grants.list_in("demo")[0].name)
    assert [grant.account for grant in scene.grants.list_of("ann")] == ["other"]


async def test_replica_that_lags_takes_a_new_member_for_one(scene):
    scene.users.cut = True
    scene.put_user("new", "member")
    tokens = await scene.get_tokens(user="new")
    scene.users.forget("new")
    await scene.refresh(tokens)


async def test_codes_and_tokens_are_unavailable_without_record_or_redis(scene):
    form = await scene.get_code()
    with scene.store.away():
        with pytest.raises(Unavailable):
            await scene.get_code()
        with pytest.raises(Unavailable):
            await scene.grants.exchange(SITE, form)
    scene.kube.away = True
    with pytest.raises(Unavailable):
        await scene.grants.exchange(SITE, form)
    scene.kube.away = False
    assert scene.names() == []
