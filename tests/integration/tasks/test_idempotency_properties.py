"""Sequences of creates against the real API, compared with a model of contract §2.2."""

import asyncio
import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.servers.tenants import (
    ask_patiently,
    describe_account,
    describe_key,
    list_objects,
    make_key,
    unique,
    wait_known,
)

GOOD = {
    "plain": ("plain", {}),
    "plain with its defaults": ("plain", {"aspect_ratio": "16:9", "duration_seconds": 5}),
    "plain with nulls": ("plain", {"callback_url": None, "audio": None}),
    "longer": ("longer", {"duration_seconds": 6}),
    "called back": ("called back", {"callback_url": "https://example.com/hook"}),
}
BAD = {"blank": {"prompt": " "}, "unknown field": {"colour": "red"}, "too long": {"prompt": None}}
CALLERS = ("first key", "second key", "other account")


@dataclass(frozen=True)
class Call:
    """One create: by whom, under which key, with which body."""

    caller: str
    key: str | None
    body: str

    @property
    def account(self):
        return "other" if self.caller == "other account" else "own"


@dataclass
class Model:
    """What must have become of the calls so far: keys that are bound, and tasks that were made."""

    bound: dict = field(default_factory=dict)
    made: dict = field(default_factory=lambda: {"own": set(), "other": set()})

    def check(self, calls, answers):
        """Checks the answers of calls that were made at once, and takes note of them."""
        groups = {}
        for call, answer in zip(calls, answers, strict=True):
            if call.body in BAD:
                assert answer.status == 400
            elif call.key is None:
                self.check_new(call, answer)
            else:
                groups.setdefault((call.account, call.key), []).append((call, answer))
        for place, exchanges in groups.items():
            self.check_keyed(place, exchanges)

    def check_new(self, call, answer):
        assert answer.status == 202, answer.raw
        assert set(answer.body) == {"id", "status"}
        assert answer.body["id"] not in self.made[call.account]
        self.made[call.account].add(answer.body["id"])

    def check_keyed(self, place, exchanges):
        """Of equal keys exactly one call makes a task, unless one is bound; the rest follow."""
        if place not in self.bound:
            firsts = [
                exchange
                for exchange in exchanges
                if exchange[1].status == 202 and "task_replayed" not in exchange[1].body
            ]
            assert len(firsts) == 1, [answer.raw for _, answer in exchanges]
            (first,) = firsts
            self.check_new(*first)
            self.bound[place] = (GOOD[first[0].body][0], first[1].body["id"])
            exchanges = [exchange for exchange in exchanges if exchange is not first]
        meaning, task = self.bound[place]
        for call, answer in exchanges:
            if GOOD[call.body][0] == meaning:
                assert answer.status == 202, answer.raw
                assert answer.body == {"id": task, "status": "processing", "task_replayed": True}
            else:
                assert answer.status == 409, answer.raw
                assert answer.headers["X-Task-Id"] == task


calls = st.builds(
    Call,
    caller=st.sampled_from(CALLERS),
    key=st.sampled_from(["a", "b", "c", None]),
    body=st.sampled_from([*GOOD, *BAD]),
)
# calls of one group are made at once, groups one after another
scripts = st.lists(st.lists(calls, min_size=1, max_size=5), min_size=1, max_size=6)
numbers = itertools.count()


@pytest.fixture(scope="module")
def callers(world):
    """API keys by caller, and the names of both accounts; without limits."""
    names = {"own": unique("acct"), "other": unique("acct")}
    limits = {"unlimited": True, "requestsPerMinute": 1_000_000}
    other, other_key = describe_key(world, names["other"])
    own, own_key = describe_key(world, names["own"])
    world.apply(*(describe_account(name, **limits) for name in names.values()), own_key, other_key)
    second = make_key(world, names["own"])
    keys = (own.plaintext, second.plaintext, other.plaintext)

    async def wait():
        async with world.client() as client:
            for key in keys:
                await wait_known(client, key)

    asyncio.run(wait())
    return dict(zip(CALLERS, keys, strict=True)), names


@pytest.mark.full
def test_any_sequence_of_creates_is_answered_as_the_model_says(world, callers):
    keys, names = callers
    expected = {"own": set(), "other": set()}

    @settings(
        max_examples=30,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(scripts)
    def play(script):
        made = asyncio.run(play_script(world, keys, script))
        for account, tasks in made.items():
            expected[account] |= tasks

    play()

    async def list_made(account):
        async with world.client(account=names[account]) as client:
            return {obj["metadata"]["name"] for obj in list_objects(client)}

    for account, tasks in expected.items():
        objects = asyncio.run(list_made(account))
        assert objects == {task.replace("_", "-", 1) for task in tasks}


async def play_script(world, keys, script):
    """Plays one script under keys that no other has; the tasks that it made."""
    model, prefix = Model(), f"{next(numbers)}-"
    async with world.client() as client:

        async def make(call):
            changes = BAD.get(call.body) or GOOD.get(call.body, ("", {}))[1]
            body = {**client.body(), **changes}
            headers = {} if call.key is None else {"Idempotency-Key": prefix + call.key}
            options = {"headers": headers, "body": body, "key": keys[call.caller]}
            return await ask_patiently(lambda: client.request("POST", client.tasks_path, **options))

        for group in script:
            model.check(group, await asyncio.gather(*(make(call) for call in group)))
    return model.made
