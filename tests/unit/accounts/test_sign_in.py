"""Sign-in by password: refusals, bounds of attempts, and the end of sessions."""

import asyncio
import hashlib

import pytest

from gateway_core.accounts import passwords
from gateway_core.accounts.password_rules import PasswordRefused
from gateway_core.accounts.passwords import PasswordChecker, hash_password
from gateway_core.accounts.records import project_user
from gateway_core.accounts.sessions import (
    ABSOLUTE_SECONDS,
    IDLE_SECONDS,
    MOST_SESSIONS,
    SessionStore,
)
from gateway_core.accounts.sign_in import (
    SignInRefused,
    UserIndex,
)
from gateway_core.accounts.throttle import BUCKETS, Allowance, Throttle
from gateway_core.api.errors import TooManyCalls, Unavailable
from tests.fakes.informer import FakeInformer
from tests.fakes.kubernetes import FakeKubernetes
from tests.unit.accounts.people import ADDRESS, CHOSEN, HASH, ID_KEY, PASSWORD, Scene


@pytest.fixture
def scene():
    return Scene()


@pytest.fixture
def no_hashing(monkeypatch):
    """Compare passwords as text: tests of many attempts take no time for hashes."""
    monkeypatch.setattr(passwords, "_verify", lambda _, password: password == PASSWORD)


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
async def test_wrong_email_or_password_is_refused_alike(scene, email, password):
    with pytest.raises(SignInRefused, match="is not right"):
        await scene.sign_in(email, password)


async def test_user_without_password_suspended_or_ambiguous_is_refused(scene):
    much_memory = HASH.replace("m=19456", "m=4194304")
    for spec in (
        {"passwordHash": None},
        {"passwordHash": "$argon2id$x"},
        {"passwordHash": much_memory},
        {"suspended": True},
    ):
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


@pytest.mark.usefixtures("no_hashing")
async def test_failures_are_limited_by_address_and_email_and_a_success_forgives(scene):
    await scene.fail(9)
    await scene.sign_in()
    await scene.fail(10)
    with pytest.raises(TooManyCalls) as error:
        await scene.sign_in()
    assert 0 < error.value.retry_after <= 900
    await scene.sign_in(address="192.0.2.2")
    scene.store.now += 900
    await scene.sign_in()


@pytest.mark.usefixtures("no_hashing")
async def test_strangers_cannot_lock_a_person_out(scene):
    for n in range(150):
        await scene.fail(address=f"192.0.2.{n}")
    await scene.sign_in(address="198.51.100.1")


@pytest.mark.usefixtures("no_hashing")
async def test_address_has_fewer_guesses_at_an_email_under_attack(scene):
    for n in range(100):
        await scene.fail(address=f"192.0.2.{n}")
    await scene.fail(2, address="203.0.113.1")
    with pytest.raises(TooManyCalls):
        await scene.enter(address="203.0.113.1")


@pytest.mark.usefixtures("no_hashing")
async def test_guesses_at_an_email_in_a_day_are_bounded_but_in_known_browsers(scene):
    mark = (await scene.enter()).mark
    for n in range(999):
        await scene.fail(address=f"2001:db8:{n:x}::1")
    for email in ("ann@example.com", "nobody@example.com"):
        refusals = 0
        for n in range(1001):
            try:
                await scene.enter(email, "wrong", f"2001:db8:1:{n:x}::1")
            except TooManyCalls:
                refusals += 1
            except SignInRefused:
                pass
        # the same for an email of nobody: a refusal says nothing about who is a user
        assert refusals == (1001 if email.startswith("ann") else 1)
    assert (await scene.enter(mark=mark)).token
    scene.store.now += 86_400
    assert await scene.sign_in()


@pytest.mark.usefixtures("no_hashing")
async def test_known_browser_is_not_locked_out_by_its_address_and_has_few_guesses(scene):
    mark = (await scene.enter()).mark
    await scene.fail(10)
    with pytest.raises(TooManyCalls):
        await scene.enter()
    for n in range(48):
        await scene.fail(email=f"{n}@example.com")
    with pytest.raises(TooManyCalls):
        await scene.enter(email="other@example.com")
    mark = (await scene.enter(mark=mark)).mark
    await scene.fail(10, mark=mark)
    with pytest.raises(TooManyCalls):
        await scene.enter(mark=mark)


async def test_user_keeps_the_newest_sessions(scene):
    store = SessionStore(scene.store, lambda: scene.store.now)
    first = await scene.sign_in()
    others = [await store.begin("ann", "sso", "x") for _ in range(MOST_SESSIONS - 1)]
    theirs = await store.begin("bob", "sso", "x")
    assert await scene.who(first) == "ann"
    last = await scene.sign_in()
    assert await scene.who(first) is None
    assert await scene.who(last) == "ann"
    assert await store.find(theirs)
    assert await store.find(others[0])
    assert len(scene.store.values) == MOST_SESSIONS + 1


@pytest.mark.parametrize("changes_mark", [True, False])
async def test_known_browser_that_repeats_the_right_password_is_refused_unhashed(
    scene, monkeypatch, changes_mark
):
    hashed = []
    monkeypatch.setattr(passwords, "_verify", lambda *given: bool(hashed.append(given)) or True)
    mark = (await scene.enter()).mark
    for _ in range(59):
        entry = await scene.enter(mark=mark)
        mark = entry.mark if changes_mark else mark
    for _ in range(3):
        with pytest.raises(TooManyCalls):
            await scene.enter(mark=mark)
    assert len(hashed) <= 61
    assert len(scene.store.values) == MOST_SESSIONS
    scene.store.now += 900
    await scene.enter(mark=mark)


@pytest.mark.usefixtures("no_hashing")
async def test_successes_from_many_addresses_are_counted_by_user(scene):
    for n in range(60):
        await scene.enter(address=f"192.0.2.{n}")
    with pytest.raises(TooManyCalls):
        await scene.enter(address="192.0.2.200")


@pytest.mark.usefixtures("no_hashing")
async def test_mark_of_another_person_or_made_up_counts_for_nothing(scene):
    scene.put("bob", email="bob@example.com")
    theirs = (await scene.enter("bob@example.com")).mark
    await scene.fail(10)
    for mark in (theirs, "x" * 48, "", "é" * 48):
        with pytest.raises(TooManyCalls):
            await scene.enter(mark=mark)


async def test_counts_of_tries_are_bounded_whatever_the_names(scene, monkeypatch):
    assert BUCKETS <= 2**16
    monkeypatch.setattr("gateway_core.accounts.throttle.BUCKETS", 16)
    throttle = Throttle(scene.store, {"x": Allowance(10**9, 60)}, ID_KEY)
    for n in range(1000):
        await throttle.count("x", f"{n}@example.com")
    assert len(scene.store.counts) == 16


def test_bucket_of_a_name_cannot_be_worked_out():
    ours, theirs = (Throttle(None, {}, key)._name("x", "ann") for key in (ID_KEY, b"j" * 32))
    assert ours != theirs


async def test_hashes_are_shared_fairly_and_waits_are_bounded(monkeypatch):
    verify, order = passwords._verify, []

    def note(stored, password):
        order.append(password)
        return verify(stored, password)

    monkeypatch.setattr(passwords, "_verify", note)
    checker = PasswordChecker(ID_KEY)
    flood = [checker.check(HASH, "flood", "192.0.2.1") for _ in range(50)]
    running = asyncio.gather(*flood, return_exceptions=True)
    await asyncio.sleep(0)
    assert await checker.check(HASH, PASSWORD, "192.0.2.2")
    assert order.index(PASSWORD) <= passwords.AT_ONCE + 1
    refused = [each for each in await running if isinstance(each, TooManyCalls)]
    assert len(refused) >= 50 - passwords.AT_ONCE - passwords.MOST_WAITING


async def test_hash_that_does_not_come_in_time_is_refused():
    checker = PasswordChecker(ID_KEY, seconds=0.0)
    answers = await asyncio.gather(
        *(checker.check(HASH, PASSWORD, f"192.0.2.{n}") for n in range(6)), return_exceptions=True
    )
    assert any(isinstance(answer, TooManyCalls) for answer in answers)
    assert True in answers


async def test_chosen_password_replaces_the_old_one_and_ends_other_sessions(scene):
    other = await scene.sign_in()
    own = await scene.service.find(await scene.sign_in())
    token = await scene.service.change_password(own, PASSWORD, CHOSEN, ADDRESS)
    assert await scene.who(token) == "ann"
    assert await scene.who(other) is None
    assert await scene.who(own.token) is None
    await scene.fail()
    with pytest.raises(SignInRefused):
        await scene.enter()
    assert await scene.who(await scene.sign_in(password=CHOSEN)) == "ann"
    assert CHOSEN not in str(scene.kube.find("gatewayusers", "ann"))


async def test_letters_that_keyboards_compose_differently_are_the_same_password(scene):
    own = await scene.service.find(await scene.sign_in())
    await scene.service.change_password(own, PASSWORD, "caf\u00e9 noir et lune", ADDRESS)
    assert await scene.sign_in(password="cafe\u0301 noir et lune")


async def test_hash_of_a_chosen_password_cannot_be_guessed_at_without_the_id_key(scene):
    own = await scene.service.find(await scene.sign_in())
    await scene.service.change_password(own, PASSWORD, CHOSEN, ADDRESS)
    stored = scene.kube.find("gatewayusers", "ann")["spec"]["passwordHash"]
    assert await PasswordChecker(ID_KEY).check(stored, CHOSEN, ADDRESS)
    assert not await PasswordChecker(b"j" * 32).check(stored, CHOSEN, ADDRESS)
    plain = stored.replace(",keyid=aWRrZXk", "")
    assert plain != stored
    assert not await PasswordChecker(ID_KEY).check(plain, CHOSEN, ADDRESS)


@pytest.mark.parametrize("chosen", ["short", "password1234", "ann@example.com", ""])
async def test_easy_password_is_not_taken(scene, chosen):
    own = await scene.service.find(await scene.sign_in())
    with pytest.raises(PasswordRefused):
        await scene.service.change_password(own, PASSWORD, chosen, ADDRESS)
    assert await scene.who(own.token) == "ann"
    assert await scene.sign_in()


@pytest.mark.usefixtures("no_hashing")
async def test_change_of_password_asks_the_old_one_a_few_times(scene):
    own = await scene.service.find(await scene.sign_in())
    for _ in range(10):
        with pytest.raises(SignInRefused):
            await scene.service.change_password(own, "wrong", CHOSEN, ADDRESS)
    with pytest.raises(TooManyCalls):
        await scene.service.change_password(own, PASSWORD, CHOSEN, ADDRESS)
    assert await scene.who(own.token) == "ann"


async def test_change_does_not_undo_a_reset_that_came_between(scene):
    own = await scene.service.find(await scene.sign_in())
    scene.users.cut = True
    scene.put("ann", passwordHash=hash_password("reset"))
    with pytest.raises(SignInRefused):
        await scene.service.change_password(own, PASSWORD, CHOSEN, ADDRESS)


async def test_session_lives_on_a_replica_that_lags(scene):
    token = await scene.sign_in()
    scene.users.forget("ann")
    assert await scene.who(token) == "ann"
    own = await scene.service.find(token)
    old = scene.users.get("ann")
    changed = await scene.service.change_password(own, PASSWORD, CHOSEN, ADDRESS)
    scene.users._entries["ann"], scene.users._versions["ann"] = old, 0
    assert await scene.who(changed) == "ann"


async def test_session_is_kept_while_the_record_cannot_be_read(scene):
    token = await scene.sign_in()
    scene.users.forget("ann")
    scene.kube.away = True
    with pytest.raises(Unavailable):
        await scene.who(token)


def test_letters_that_fold_to_ascii_are_no_email_of_another():
    kube = FakeKubernetes()
    users = FakeInformer(kube, "gatewayusers", project_user)
    index = UserIndex(users)
    spec = {"displayName": "K", "email": "Kim@example.com"}
    kube.put("gatewayusers", {"metadata": {"name": "kim"}, "spec": spec})
    assert index.find(" kim@EXAMPLE.com ").name == "kim"
    assert index.find("\u212aim@example.com") is None


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
async def test_invented_session_tokens_are_unknown(scene, token):
    assert await scene.who(token) is None


async def test_sign_in_is_unavailable_without_redis(scene):
    token = await scene.sign_in()
    with scene.store.away():
        with pytest.raises(Unavailable):
            await scene.sign_in()
        with pytest.raises(Unavailable):
            await scene.who(token)
    assert await scene.who(token) == "ann"
