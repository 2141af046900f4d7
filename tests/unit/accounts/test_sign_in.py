"""Sign-in by password: whom it lets in, what it takes, and how sessions end."""

import hashlib

import pytest

from gateway_core.accounts import passwords
from gateway_core.accounts.passwords import PasswordChecker, hash_password
from gateway_core.accounts.records import project_user
from gateway_core.accounts.sessions import ABSOLUTE_SECONDS, IDLE_SECONDS, SessionStore
from gateway_core.accounts.sign_in import SIGN_IN_ALLOWANCES, SignIn, SignInRefused
from gateway_core.accounts.throttle import Allowance, Throttle
from gateway_core.api.errors import TooManyCalls, Unavailable
from gateway_core.kube.read_through import ReadThrough
from tests.fakes.informer import FakeInformer
from tests.fakes.kubernetes import FakeKubernetes
from tests.fakes.transient import FakeTransient

PASSWORD = "k6rmj-xe446-4zzy5-hjuhn-vhhw3"
HASH = hash_password(PASSWORD)
ADDRESS = "192.0.2.1"


class Scene:
    """Ann with a password."""

    def __init__(self):
        self.kube = FakeKubernetes()
        self.store = FakeTransient()
        users = FakeInformer(self.kube, "gatewayusers", project_user)
        allowances = {**SIGN_IN_ALLOWANCES, "sign-in-address": Allowance(60, 60)}
        self.service = SignIn(
            ReadThrough(users, self.kube, "gatewayusers"),
            PasswordChecker(),
            SessionStore(self.store, lambda: self.store.now),
            Throttle(self.store, allowances),
        )
        self.put("ann")

    def put(self, name, **spec):
        base = {"displayName": name, "email": "Ann@Example.com", "passwordHash": HASH}
        self.kube.put("gatewayusers", {"metadata": {"name": name}, "spec": {**base, **spec}})

    async def sign_in(self, email="ann@example.com", password=PASSWORD, address=ADDRESS):
        return await self.service.sign_in(email, password, address)

    async def who(self, token):
        found = await self.service.find(token)
        return None if found is None else found.user.name


@pytest.fixture
def scene():
    return Scene()


async def test_right_password_begins_a_session(scene):
    token = await scene.sign_in(" ANN@example.COM ")
    assert await scene.who(token) == "ann"
    assert await scene.sign_in() != token


async def test_redis_holds_no_token(scene):
    token = await scene.sign_in()
    assert token not in str(scene.store.values)
    assert hashlib.sha256(token.encode()).hexdigest() in str(scene.store.values)


@pytest.mark.parametrize(
    ("email", "password"),
    [
        ("ann@example.com", PASSWORD + "x"),
        ("ann@example.com", ""),
        ("ann@example.com", PASSWORD + "x" * 1000),
        ("bob@example.com", PASSWORD),
        ("", PASSWORD),
    ],
)
async def test_anything_else_is_refused_alike(scene, email, password):
    with pytest.raises(SignInRefused, match="is not right"):
        await scene.sign_in(email, password)


async def test_user_without_password_suspended_or_ambiguous_is_refused(scene):
    for spec in ({"passwordHash": None}, {"suspended": True}, {"passwordHash": "$argon2id$x"}):
        scene.put("ann", **spec)
        with pytest.raises(SignInRefused):
            await scene.sign_in()
    scene.put("ann")
    scene.put("bob")
    with pytest.raises(SignInRefused):
        await scene.sign_in()


async def test_same_hashing_is_done_for_unknown_users(scene, monkeypatch):
    done = []
    verify = passwords._verify

    def note(stored, password):
        done.append(stored.rpartition("$")[0].rpartition("$")[0])
        return verify(stored, password)

    monkeypatch.setattr(passwords, "_verify", note)
    scene.put("nopass", email="nopass@example.com", passwordHash=None)
    for email in ("ann@example.com", "nobody@example.com", "nopass@example.com"):
        with pytest.raises(SignInRefused):
            await scene.sign_in(email, "wrong")
    assert done == ["$argon2id$v=19$m=19456,t=2,p=1"] * 3


async def test_hash_that_asks_for_much_memory_is_not_computed(scene):
    scene.put("ann", passwordHash=HASH.replace("m=19456", "m=4194304"))
    with pytest.raises(SignInRefused):
        await scene.sign_in()


async def test_failures_are_limited_by_address_and_email_and_a_success_forgives(scene):
    for _ in range(9):
        with pytest.raises(SignInRefused):
            await scene.sign_in(password="wrong")
    await scene.sign_in()
    for _ in range(10):
        with pytest.raises(SignInRefused):
            await scene.sign_in(password="wrong")
    with pytest.raises(TooManyCalls) as error:
        await scene.sign_in()
    assert 0 < error.value.retry_after <= 900
    await scene.sign_in(address="192.0.2.2")
    scene.store.now += 900
    await scene.sign_in()


async def test_failures_at_one_email_are_limited_from_everywhere(scene):
    for n in range(100):
        with pytest.raises(SignInRefused):
            await scene.sign_in(password="wrong", address=f"192.0.2.{n}")
    with pytest.raises(TooManyCalls):
        await scene.sign_in(address="198.51.100.1")


async def test_session_ends_when_idle_or_a_week_old(scene):
    token = await scene.sign_in()
    scene.store.now += IDLE_SECONDS - 1
    assert await scene.who(token) == "ann"
    scene.store.now += IDLE_SECONDS
    assert await scene.who(token) is None
    token = await scene.sign_in()
    began = scene.store.now
    while scene.store.now < began + ABSOLUTE_SECONDS - IDLE_SECONDS:
        scene.store.now += IDLE_SECONDS - 1
        assert await scene.who(token) == "ann"
    scene.store.now = began + ABSOLUTE_SECONDS
    assert await scene.who(token) is None


async def test_session_ends_with_sign_out_password_suspension_or_user(scene):
    ends = (
        lambda: scene.put("ann", passwordHash=hash_password("another")),
        lambda: scene.put("ann", suspended=True),
        lambda: scene.kube.remove("gatewayusers", "ann"),
    )
    for end in ends:
        scene.put("ann")
        token = await scene.sign_in()
        end()
        assert await scene.who(token) is None
        scene.put("ann")
        assert await scene.who(token) is None
    token = await scene.sign_in()
    await scene.service.sign_out(token)
    assert await scene.who(token) is None


@pytest.mark.parametrize("token", ["", "x", "x" * 43, "é" * 64, "x" * 10_000])
async def test_made_up_sessions_are_nobodys(scene, token):
    assert await scene.who(token) is None


async def test_without_redis_nobody_signs_in(scene):
    token = await scene.sign_in()
    with scene.store.away():
        with pytest.raises(Unavailable):
            await scene.sign_in()
        with pytest.raises(Unavailable):
            await scene.who(token)
    assert await scene.who(token) == "ann"
