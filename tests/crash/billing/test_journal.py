"""Calls that leave no objects: kill -9 of their process and of the operator, Redis lost (I7).

Less than a second of the killed process's traffic is lost, nothing is counted twice, and what the
counters say is what the record says.
"""

import asyncio
import json
import secrets
import signal
import subprocess
import sys
import time
from functools import partial
from itertools import pairwise

import pytest

from gateway_cli.local.processes import describe_gateway
from gateway_core.api.limits import subject_of_key
from gateway_core.billing.counters import Budget
from gateway_core.billing.redis_counters import Counters
from gateway_core.redis.link import CountersStale, CountersUnavailable
from tests.crash.journal import USUAL_GAP_SECONDS, go_back, list_usage, wait_folded
from tests.crash.steps import JOURNAL, choose
from tests.servers.tenants import open_tenant
from tests.servers.world import ROOT, Client, World, wait_for
from tests.shares import share

# what the counters tell is of today
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("one_day"),
]

KEY = "key-of-the-caller"
MODERATIONS_AT_ONCE = 4
MODERATION_MICROS = 100
QUICK_PUT_SECONDS = 0.2
"""With the journal's pause of 0.75 s such a put is done within a second."""


@pytest.fixture(scope="module")
def world(control_plane):
    with World(control_plane, extra_env={"operator": {"GATEWAY_FOLD_SECONDS": "0.2"}}) as running:
        yield running


class Caller:
    """A process of `tests.servers.caller`, and what it has said."""

    def __init__(self, world: World, account: str) -> None:
        spec = describe_gateway("api", world.config, world.run.credentials)
        name = f"caller-{secrets.token_hex(4)}"
        self._said = world.config.log_directory / f"{name}.jsonl"
        log = world.config.log_directory / f"{name}.log"
        with self._said.open("wb") as output, log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.servers.caller", account, KEY],
                env={**spec.env, "PYTHONPATH": str(ROOT)},
                cwd=ROOT,
                stdout=output,
                stderr=errors,
            )

    def list_said(self, what: str) -> list[dict]:
        return [line for line in self._list_lines() if line["what"] == what]

    def list_moments(self) -> list[float]:
        """When it said anything."""
        return [line["at"] for line in self._list_lines()]

    def _list_lines(self) -> list[dict]:
        return [json.loads(line) for line in self._said.read_bytes().split(b"\n")[:-1]]

    def end(self) -> None:
        """Asks it to end, and waits until it has."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(30) == 0
        assert self.list_said("closed")

    def kill(self) -> float:
        """Ends it at once; when that was."""
        at = time.time()
        self.process.kill()
        self.process.wait(10)
        return at


@pytest.fixture
def account():
    return f"calls-{secrets.token_hex(4)}"


@pytest.fixture
def call(world, account):
    """Starts callers; those left at the end are killed."""
    callers: list[Caller] = []

    def start() -> Caller:
        callers.append(Caller(world, account))
        return callers[-1]

    yield start
    for caller in callers:
        if caller.process.poll() is None:
            caller.kill()


def read_usage(world: World, account: str) -> tuple[int, int]:
    """Calls and micro-dollars in the account's usage, and that all its sums agree."""
    found = list_usage(world, account)
    if not found:
        return 0, 0
    calls, micros = (sum(s[name] for s in found) for name in ("requests", "chargedMicros"))
    for parts in ("hours", "rows"):
        assert sum(part["chargedMicros"] for s in found for part in s[parts]) == micros
    assert sum(s["inputTokens"] for s in found) == 7 * calls
    spent = [entry for s in found for entry in s["spent"]]
    assert {entry["subject"] for entry in spent} == {subject_of_key(KEY)}
    assert sum(entry["chargedMicros"] for entry in spent) == micros
    return calls, micros


async def is_used(world: World, account: str, calls: int, micros: int) -> bool:
    return await asyncio.to_thread(read_usage, world, account) == (calls, micros)


async def read_counters(counters: Counters, account: str) -> tuple[int, int, int] | None:
    """Charged, held, and what the key has spent, by the counters; None while they are stale."""
    budget = Budget(subject_of_key(KEY), 10**9, "1h")
    try:
        spending = await counters.read_spending(account, time.strftime("%Y-%m-%d", time.gmtime()))
        [state] = await counters.read_budgets(account, [budget])
    except (CountersStale, CountersUnavailable):
        return None
    return spending.charged, spending.held, state.used


async def wait_counters(counters: Counters, account: str, micros: int) -> None:
    async def agree() -> bool:
        return await read_counters(counters, account) == (micros, 0, micros)

    await wait_for(agree, what=f"the counters at {micros}", seconds=30)


async def wait_calls(caller: Caller, count: int) -> None:
    await wait_for(lambda: len(caller.list_said("ended")) >= count, what="calls", seconds=90)


def sum_slow_puts(caller: Caller, killed: float) -> float:
    """By how much the store was slower than the journal allows for; hold-ups are no part of it.

    What is in danger at the kill ended since the begin of the last put that was done; beside that
    one only a put that was under way matters.
    """
    moments = caller.list_moments()
    ends = {line["key"]: line["at"] for line in caller.list_said("stored")}
    puts = [(line["at"], ends.get(line["key"])) for line in caller.list_said("put")]
    slow = 0.0
    for begun, end in reversed(puts):
        during = [moment for moment in moments if begun <= moment <= (end or killed)]
        gaps = pairwise([*during, end or killed])
        took = sum(min(USUAL_GAP_SECONDS, later - earlier) for earlier, later in gaps)
        slow += max(0.0, took - QUICK_PUT_SECONDS)
        if end is not None:
            break
    return slow


async def test_killed_process_loses_less_than_a_second(world, account, call):
    """What is in the record is a beginning of what it said, up to a second before its death."""
    calls = micros = 0
    for count in (60, 130, 200):
        caller = call()
        await wait_calls(caller, count)
        killed = caller.kill()
        await wait_folded(world)
        found = await asyncio.to_thread(read_usage, world, account)
        told = caller.list_said("ending")
        kept = found[0] - calls
        bound = go_back(killed, caller.list_moments(), 1 + sum_slow_puts(caller, killed))
        safe = [line for line in caller.list_said("ended") if line["at"] < bound]
        assert len(safe) <= kept <= len(told), "less than a second is lost, nothing is twice"
        micros += sum(line["micros"] for line in told[:kept])
        calls += kept
        assert found == (calls, micros)


KILLS_A_STEP = 25
STEPS = choose("operator", JOURNAL)
HIT = 2
"""The step is passed once before it kills."""


@pytest.mark.parametrize("kill", range(share(KILLS_A_STEP)))
async def test_operator_killed_at_steps_of_the_fold_counts_nothing_twice(
    world, account, call, counters, tally, kill
):
    row = tally("F1", "operator killed at each step of the journal's fold")
    caller = call()
    for step in STEPS:
        world.restart_doomed("operator", {"GATEWAY_FAILPOINTS": f"{step}:{HIT}"})
        await wait_for(lambda: not world.is_alive("operator"), what=f"death at {step}", seconds=40)
    world.run.restart("operator", {})
    caller.end()
    async with row.trial(count=len(STEPS)):
        await wait_folded(world)
        told = caller.list_said("ended")
        micros = sum(line["micros"] for line in told)
        assert await asyncio.to_thread(read_usage, world, account) == (len(told), micros)
        await wait_counters(counters, account, micros)
    row.check()


async def test_redis_lost_under_traffic_is_rebuilt_from_the_record(world, account, call, counters):
    """It is killed and emptied while two processes make calls; all figures are the same after."""
    callers = [call(), call()]
    for count in (80, 200):
        for caller in callers:
            await wait_calls(caller, count)
        world.run.kill("redis")
        world.run.restart("redis")
    for caller in callers:
        await wait_calls(caller, 320)
        caller.process.send_signal(signal.SIGUSR1)
    for caller in callers:
        # it has one loop of calls, which says so after its last
        await wait_for(partial(caller.list_said, "resting"), what="rest", seconds=40)
    for caller in callers:
        assert any(line["leased"] for line in caller.list_said("ending"))
    told = [line for caller in callers for line in caller.list_said("ended")]
    micros = sum(line["micros"] for line in told)
    await wait_counters(counters, account, micros)
    # what has ended last is perhaps not in the journal yet
    await wait_for(
        lambda: is_used(world, account, len(told), micros), what="every call folded", seconds=40
    )
    await wait_folded(world)
    assert await asyncio.to_thread(read_usage, world, account) == (len(told), micros)

    world.run.kill("redis")
    world.run.restart("redis")
    # who makes calls again is told that the money is to be rebuilt
    again = call()
    await wait_calls(again, 5)
    again.end()
    for caller in callers:
        caller.end()
    told += again.list_said("ended")
    await wait_counters(counters, account, sum(line["micros"] for line in told))


async def judge_always(client: Client, ended: list[float]) -> None:
    """Moderation after moderation, until the API is gone."""
    body = {"model": "sim-moderation", "input": "a quiet lighthouse"}
    while True:
        try:
            answer = await client.request("POST", "/v1/moderations", body=body)
        except ConnectionError:
            return
        assert answer.status == 200, answer.raw
        ended.append(time.time())


@pytest.mark.parametrize(
    "signal_number", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"]
)
async def test_api_that_ends_keeps_charges_of_moderations(world, signal_number):
    """Killed, it loses less than a second of charges; asked to end, it loses none (I7, I9)."""
    async with open_tenant(world, requestsPerMinute=1_000_000) as client:
        ended: list[float] = []
        async with asyncio.TaskGroup() as group:
            for _ in range(MODERATIONS_AT_ONCE):
                group.create_task(judge_always(client, ended))
            await wait_for(lambda: len(ended) >= 200, what="moderations", seconds=60)
            at = time.time()
            await asyncio.to_thread(world.run.kill, "api", signal_number)
            # asked to end, it is still storing; a restart would signal it again
            await wait_for(lambda: not world.is_alive("api"), what="its end", seconds=40)
        await asyncio.to_thread(world.run.restart, "api", {})
        await wait_folded(world)
        found = list_usage(world, client.account)
        calls, micros = (sum(s[name] for s in found) for name in ("requests", "chargedMicros"))
    assert micros == calls * MODERATION_MICROS
    if signal_number == signal.SIGTERM:
        assert calls == len(ended)
    else:
        bound = go_back(at, ended)
        safe = [moment for moment in ended if moment < bound]
        assert len(safe) <= calls <= len(ended) + MODERATIONS_AT_ONCE
