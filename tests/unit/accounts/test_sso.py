"""Single sign-on: the user of an identity, and the cookie of a begun sign-in."""

from urllib.parse import parse_qsl, urlsplit

import pytest

from gateway_core.accounts.oidc import Identity
from gateway_core.accounts.records import project_user
from gateway_core.accounts.sessions import SessionStore
from gateway_core.accounts.sso import (
    MOST_AFTER,
    PENDING_SECONDS,
    PendingCookies,
    SignOn,
    SignOnPolicy,
)
from gateway_core.api.errors import Forbidden, InvalidRequest
from tests.fakes.informer import FakeInformer
from tests.fakes.kubernetes import FakeKubernetes
from tests.fakes.transient import FakeTransient

ISSUER = "https://id.example.com"
AFTER = "/oauth/authorize?client_id=a&state=%22%3B"


class Provider:
    """Says who signs in."""

    issuer = ISSUER

    def __init__(self):
        self.identity = None
        self.redeemed = []

    async def locate(self, state, nonce, challenge):
        return f"{ISSUER}/auth?state={state}&nonce={nonce}&challenge={challenge}"

    async def redeem(self, code, verifier, nonce):
        self.redeemed.append((code, verifier, nonce))
        return self.identity


class Scene:
    """Ann, who has a user; and the policy of a test."""

    def __init__(self, **policy):
        self.kube = FakeKubernetes()
        self.users = FakeInformer(self.kube, "gatewayusers", project_user)
        self.provider = Provider()
        self.store = FakeTransient()
        self.now = 1_000_000.0
        self.cookies = PendingCookies(b"i" * 32, lambda: self.now)
        sessions = SessionStore(self.store)
        self.sessions = sessions
        self.sign_on = SignOn(
            self.kube, sessions, self.users, self.provider, SignOnPolicy(**policy), self.cookies
        )
        self.put("ann")

    def put(self, name, **spec):
        spec = {"displayName": name, "email": f"{name}@example.com", **spec}
        self.kube.put("gatewayusers", {"metadata": {"name": name}, "spec": spec})

    def bound(self, name):
        return self.kube.find("gatewayusers", name)["spec"].get("singleSignOn")

    async def come(self, subject="1", email="ann@example.com", issuer=ISSUER):
        """The user who comes in as this identity."""
        self.provider.identity = Identity(issuer, subject, email, "Somebody")
        location, cookie = await self.sign_on.begin(AFTER)
        state = dict(parse_qsl(urlsplit(location).query))["state"]
        token, after = await self.sign_on.finish(state, "code", ISSUER, cookie)
        assert after == AFTER
        return (await self.sessions.find(token)).user


@pytest.fixture
def scene():
    return Scene()


async def test_identity_is_bound_to_the_user_with_its_email(scene):
    assert await scene.come() == "ann"
    assert scene.bound("ann") == {"issuer": ISSUER, "subject": "1"}
    assert await scene.come() == "ann"


async def test_another_identity_with_the_same_email_is_refused(scene):
    await scene.come()
    with pytest.raises(Forbidden):
        await scene.come(subject="2")
    with pytest.raises(Forbidden):
        await scene.come(issuer="https://other.example.com")
    assert scene.bound("ann") == {"issuer": ISSUER, "subject": "1"}


async def test_replica_that_lags_binds_no_second_identity(scene):
    scene.users.cut = True
    await scene.come()
    scene.users._entries["ann"] = project_user(
        {
            **scene.kube.find("gatewayusers", "ann"),
            "spec": {"displayName": "a", "email": "ann@example.com"},
        }
    )
    with pytest.raises(Forbidden):
        await scene.come(subject="2")


async def test_bound_person_keeps_the_user_when_their_email_changes(scene):
    await scene.come()
    assert await scene.come(email="ann.smith@example.com") == "ann"
    scene.put("bob")
    assert await scene.come(email="bob@example.com") == "ann"


@pytest.mark.parametrize(
    "email", [None, "\u212aim@example.com", "ann@ex\u0430mple.com", "stranger@example.com"]
)
async def test_unverified_foreign_and_unknown_emails_are_refused(scene, email):
    scene.put("kim")
    with pytest.raises(Forbidden):
        await scene.come(email=email)
    assert scene.bound("kim") is None


async def test_suspended_and_ambiguous_users_are_refused(scene):
    scene.put("ann", suspended=True)
    with pytest.raises(Forbidden):
        await scene.come()
    scene.put("ann")
    scene.put("ann2", email="ANN@example.com")
    with pytest.raises(Forbidden):
        await scene.come()
    assert scene.bound("ann") is None


async def test_created_user_is_bound_from_the_start():
    scene = Scene(users="create")
    name = await scene.come(email="new@example.com")
    assert scene.bound(name) == {"issuer": ISSUER, "subject": "1"}
    with pytest.raises(Forbidden):
        await scene.come(subject="2", email="new@example.com")
    with pytest.raises(Forbidden):
        await scene.come(subject="x" * 256, email="other@example.com")


async def test_begun_sign_in_stores_nothing(scene):
    for _ in range(20):
        await scene.sign_on.begin("/oauth/authorize?" + "x" * 2000)
    assert scene.store.values == {}
    assert scene.kube.calls == []


async def test_page_to_go_on_to_fits_a_cookie(scene):
    _, cookie = await scene.sign_on.begin("/" + "x" * (MOST_AFTER - 1))
    assert len(f"__Host-sso={cookie}") <= 4096
    with pytest.raises(InvalidRequest):
        await scene.sign_on.begin("/" + "x" * MOST_AFTER)


async def test_cookie_of_another_sign_in_or_forged_is_refused(scene):
    scene.provider.identity = Identity(ISSUER, "1", "ann@example.com", "Ann")
    location, cookie = await scene.sign_on.begin(AFTER)
    _, other = await scene.sign_on.begin(AFTER)
    state = dict(parse_qsl(urlsplit(location).query))["state"]
    seed, until, after, tag = cookie.split(".")
    forged = (
        other,
        "",
        "x" * 5000,
        f"{seed}.{until}.{after}",
        f"{seed}.{int(until) + 1}.{after}.{tag}",
        f"{seed}.{until}.L2V2aWw.{tag}",
        cookie[:-1] + "é",
    )
    for each in forged:
        with pytest.raises(Forbidden):
            await scene.sign_on.finish(state, "code", ISSUER, each)
    for wrong in ("", "x", state + "x", "é"):
        with pytest.raises(Forbidden):
            await scene.sign_on.finish(wrong, "code", ISSUER, cookie)
    with pytest.raises(Forbidden):
        await scene.sign_on.finish(state, "code", "https://evil.example", cookie)
    assert scene.provider.redeemed == []
    scene.now += PENDING_SECONDS
    with pytest.raises(Forbidden):
        await scene.sign_on.finish(state, "code", ISSUER, cookie)


async def test_browser_does_not_know_the_secrets_of_its_sign_in(scene):
    scene.provider.identity = Identity(ISSUER, "1", "ann@example.com", "Ann")
    location, cookie = await scene.sign_on.begin(AFTER)
    given = dict(parse_qsl(urlsplit(location).query))
    await scene.sign_on.finish(given["state"], "code", None, cookie)
    [(_, verifier, nonce)] = scene.provider.redeemed
    assert nonce == given["nonce"]
    assert verifier not in cookie
    assert given["state"] not in cookie
