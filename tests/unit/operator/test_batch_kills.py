"""Batches over kills, twins and faults: every line told once, in order, and charged once (I1, I7).

The operator is killed with all it knows, at each named step and anywhere else, and another goes on
from the record and the store.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway_core.batches.results import decode_result
from gateway_core.kube.errors import ObjectNotFound, WriteConflict
from gateway_core.providers.upstream import UpstreamLimited, UpstreamRejected
from gateway_core.storage.objects import StoredObject, StoreUnavailable
from tests.fakes.clock import in_virtual_time
from tests.fakes.objects import FakeObjects
from tests.shares import IS_WHOLE
from tests.unit.operator.batch_harness import (
    FILES,
    PRICE,
    BatchSimulation,
    Judge,
    make_lines,
)
from tests.unit.operator.harness import Operator
from tests.unit.operator.steps import BATCH_STEPS as STEPS

TWICE = 2 * ("before-batch-checkpoint", "after-batch-checkpoint", "after-batch-file")
PATIENCE_SECONDS = 3600 if IS_WHOLE else 120
EXAMPLES = 1000 if IS_WHOLE else 12
LINES = 40
REFUSED = 7
"""Lines whose text ends so are answered with a 400."""


class WatchedStore(FakeObjects):
    """Knows which lines stand in it, and may lose the answer to a write, or the write for a while.

    `late` holds writes that their sender gave up; they arrive when `settle` is called. An operator
    that runs by then has read the store before, so their lines count from its next start.
    """

    def __init__(self) -> None:
        super().__init__()
        self.checkpointed: set[int] = set()
        self.delays = 0
        self.late: list[tuple[str, bytes]] = []
        self.came_late: set[str] = set()
        self._unread: set[int] = set()

    async def put(self, key: str, data: bytes) -> StoredObject:
        if "/lines/" in key and self.delays:
            self.delays -= 1
            self.late.append((key, data))
            raise StoreUnavailable("no answer in time")
        stored = await super().put(key, data)
        if "/lines/" in key:
            self.checkpointed |= {decode_result(r).number for r in data.splitlines()}
        return stored

    def settle(self) -> None:
        """Has late writes arrive now, over whatever is there."""
        for key, data in self.late:
            self.contents[key] = data
            self.came_late.add(key)
            self._unread |= {decode_result(r).number for r in data.splitlines()}
        self.late.clear()

    def note_restart(self) -> None:
        """Counts the lines of late writes, which the next operator reads."""
        self.checkpointed |= self._unread


class SternJudge(Judge):
    """Remembers what was asked of it although its result stood in the store."""

    def __init__(self, store: WatchedStore, latency: float) -> None:
        super().__init__(latency=latency)
        self.store = store
        self.needless: list[str] = []
        self.errors_of = lambda text, _: (
            UpstreamRejected("no") if text.endswith(str(REFUSED)) else None
        )

    async def moderate(
        self, body: Mapping[str, Any], *, traceparent: str | None = None
    ) -> dict[str, Any]:
        text = str(body["input"])
        if int(text.split()[-1]) + 1 in self.store.checkpointed:
            self.needless.append(text)
        return await super().moderate(body)


class KilledSimulation(BatchSimulation):
    """Its store is read anew by each operator."""

    async def restart(self) -> Operator:
        assert isinstance(self.store, WatchedStore)
        self.store.note_restart()
        return await super().restart()


def build_simulation(
    latency: float = 0.5, lag: float = 0.01
) -> tuple[BatchSimulation, WatchedStore]:
    store = WatchedStore()
    sim = KilledSimulation(SternJudge(store, latency), lag=lag)
    sim.store = store
    return sim, store


async def check(sim: BatchSimulation, name: str, *, one_owner: bool = True) -> None:
    """What holds of a batch that is closed, whatever befell the gateway."""
    status = sim.batch_status(name)
    output, errors = await sim.read_results(name)
    wanted = [f"r-{n}" for n in range(LINES)]
    told = sorted((line["custom_id"] for line in output + errors), key=wanted.index)
    began = "startTime" in status
    assert told == (wanted if began else [])
    for lines in (output, errors):
        assert [line["custom_id"] for line in lines] == [
            i for i in wanted if any(line["custom_id"] == i for line in lines)
        ]
    assert all(line["response"]["status_code"] == 200 for line in output)
    if began:
        codes = [(line["error"] or {}).get("code") for line in errors]
        unsent = sum(code in ("batch_cancelled", "batch_expired") for code in codes)
        counts = {"total": LINES, "completed": len(output), "failed": len(errors)}
        counts["sent"] = LINES - unsent
        assert status["counts"] == counts
    if status["phase"] == "Completed":
        assert [e["custom_id"] for e in errors] == [i for i in wanted if i.endswith(str(REFUSED))]
    assert status["chargedMicros"] == len(output) * PRICE
    assert await sim.balance() == (len(output) * PRICE, 0)
    await sim.open_books("demo")
    assert await sim.balance() == (len(output) * PRICE, 0)
    named = {status[f] for f in ("outputFileName", "errorFileName") if f in status}
    made = {
        obj["metadata"]["name"]
        for obj in sim.kube.list_objects(FILES)
        if obj["spec"]["request"]["purpose"] == "batch_output"
    }
    assert made == named
    if one_owner:
        assert isinstance(sim.judge, SternJudge)
        assert isinstance(sim.store, WatchedStore)
        assert sim.judge.needless == []
        # what arrived after the folder was removed is the sweep's of orphans
        left = [key for key in sim.store.contents if key.startswith("batches/")]
        assert set(left) <= sim.store.came_late


@pytest.mark.parametrize("steps", [*((step,) for step in STEPS), STEPS, TWICE])
@in_virtual_time
async def test_kill_at_steps_loses_and_doubles_nothing(steps: tuple[str, ...]) -> None:
    sim, _ = build_simulation()
    sim.arm(*steps)
    await sim.boot()
    async with sim.reviving():
        name = await sim.submit(make_lines(LINES))
        await sim.finish_batch(name)
    assert not +sim.failpoints.left
    assert sim.batch_status(name)["phase"] == "Completed"
    await check(sim, name)


@in_virtual_time
async def test_late_checkpoint_write_removes_no_result() -> None:
    sim, store = build_simulation()
    store.delays = 1
    await sim.boot()
    name = await sim.submit(make_lines(LINES))
    await sim.wait(lambda: len(store.checkpointed) > LINES // 2, what="checkpoints")
    store.settle()
    await sim.finish_batch(name)
    await check(sim, name)


@in_virtual_time
async def test_second_owner_that_ends_later_changes_nothing() -> None:
    sim, _ = build_simulation()
    await sim.boot()
    name = await sim.submit(make_lines(LINES))
    await sim.wait(lambda: sim.batch_status(name).get("phase") == "InProgress")
    sim.boot_twin(2.0)
    await sim.finish_batch(name)
    await sim.pass_time(60)
    fixed = [
        obj["status"]["results"]
        for obj in sim.batch_history[name]
        if "results" in obj.get("status", {})
    ]
    assert fixed
    assert all(results == fixed[0] for results in fixed)
    await check(sim, name, one_owner=False)


@pytest.mark.parametrize("when", ["run", "finalizing"])
@in_virtual_time
async def test_lost_bytes_of_the_input_fail_the_batch_at_no_cost(when: str) -> None:
    sim, store = build_simulation()
    step = "after-batch-checkpoint" if when == "run" else "after-batch-file"
    sim.arm(step)
    await sim.boot()
    name = await sim.submit(make_lines(LINES))
    await sim.die()
    await sim.kill()
    sim.arm()
    [key] = [key for key in store.contents if b"custom_id" in store.contents[key][:12]]
    store.contents[key] = store.contents[key].replace(b"text 39", b"texx 39")
    await sim.boot()
    status = await sim.finish_batch(name)
    assert status["phase"] == "Failed"
    assert [e["code"] for e in status["errors"]] == ["file_not_found"]
    assert status["chargedMicros"] == 0
    assert not {"outputFileName", "errorFileName"} & status.keys()
    assert await sim.balance() == (0, 0)
    for obj in sim.kube.list_objects(FILES):
        request, meta = obj["spec"]["request"], obj["metadata"]
        assert request["purpose"] == "batch" or "deletionTimestamp" in meta


@dataclass
class Scenario:
    """What befalls the gateway, when, with provider and feed so slow."""

    latency: float = 0.5
    lag: float = 0.01
    busy: int = 0
    events: list[tuple[float, str]] = field(default_factory=list)
    kills: tuple[str, ...] = ()
    """Named steps at which the operator dies, each as often as it is there."""


ACTIONS = ("kill", "kill", "store away", "counters away", "counters lose", "late", "well", "cancel")


def draw_scenarios(*more_actions: str) -> st.SearchStrategy[Scenario]:
    pauses = st.sampled_from([0.0, 0.003, 0.01, 0.05, 0.3, 1.0, 1.6, 4.0])
    return st.builds(
        Scenario,
        latency=st.sampled_from([0.01, 0.5, 3.0]),
        lag=st.sampled_from([0.001, 0.05, 2.0]),
        busy=st.integers(min_value=0, max_value=2),
        events=st.lists(st.tuples(pauses, st.sampled_from([*ACTIONS, *more_actions])), max_size=10),
        kills=st.lists(st.sampled_from(STEPS), max_size=6).map(tuple),
    )


async def befall(sim: BatchSimulation, store: WatchedStore, action: str, name: str) -> None:
    if action == "kill":
        await sim.restart()
    elif action == "twin":
        sim.boot_twin(0.5)
    elif action == "late":
        store.delays += 1
    elif action == "store away":
        store.away = True
    elif action == "counters away":
        sim.counters.away = True
    elif action == "counters lose":
        sim.counters.lose()
    elif action == "well":
        make_well(sim, store)
    elif action == "cancel":
        with suppress(WriteConflict, ObjectNotFound):
            await sim.cancel_batch(name)


def make_well(sim: BatchSimulation, store: WatchedStore) -> None:
    store.away = sim.counters.away = False
    store.delays = 0
    store.settle()


async def play(scenario: Scenario) -> None:
    """Plays a scenario to its end, and checks what must be true then."""
    sim, store = build_simulation(scenario.latency, scenario.lag)
    refuses = sim.judge.errors_of
    sim.judge.errors_of = lambda text, times: (
        UpstreamLimited("full", retry_after=0.5) if times < scenario.busy else refuses(text, times)
    )
    sim.arm(*scenario.kills)
    await sim.boot()
    async with sim.reviving():
        name = await sim.submit(make_lines(LINES))
        for seconds, action in scenario.events:
            await sim.pass_time(seconds)
            await befall(sim, store, action, name)
        make_well(sim, store)
        await sim.finish_batch(name, seconds=900)
    twins = any(action == "twin" for _, action in scenario.events)
    if "counters lose" in dict(map(reversed, scenario.events)):  # type: ignore[arg-type]
        await sim.open_books("demo")
    await sim.pass_time(60)
    await check(sim, name, one_owner=not twins)


@pytest.mark.timeout(PATIENCE_SECONDS)
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(draw_scenarios())
@example(Scenario(events=[(1.6, "kill")] * 8))
@example(Scenario(events=[(2.0, "late"), (1.6, "kill"), (3.0, "well"), (0.01, "kill")]))
@example(Scenario(0.01, 0.001, 1, [(0.0, "late"), (4.0, "kill"), (0.003, "store away")]))
def test_invariants_hold(scenario: Scenario) -> None:
    in_virtual_time(lambda: play(scenario))()


@pytest.mark.timeout(PATIENCE_SECONDS)
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(draw_scenarios("twin", "twin", "twin"))
@example(Scenario(lag=2.0, events=[(1.0, "twin"), (1.6, "kill"), (1.0, "twin")]))
def test_two_owners_at_once_do_no_harm(scenario: Scenario) -> None:
    in_virtual_time(lambda: play(scenario))()
