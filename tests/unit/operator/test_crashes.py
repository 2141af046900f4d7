"""Crashes, faults and admins in any order: the invariants hold all the same.

The operator is killed with all it knows, wherever it is, and another goes on from the record.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway_core.api.ids import TASK_FINALIZER
from gateway_core.kube.errors import ObjectNotFound, WriteConflict
from gateway_core.providers.upstream import (
    JobReport,
    JobState,
    SubmissionGuarantee,
    UpstreamBusy,
    UpstreamDenied,
    UpstreamError,
    UpstreamGone,
    UpstreamUnclear,
)
from tests.fakes.clock import in_virtual_time
from tests.fakes.upstream import FakeUpstream, Outcome
from tests.shares import IS_WHOLE
from tests.unit.operator.harness import QUOTE, ROUTE, TASKS, Simulation
from tests.unit.operator.steps import TASK_STEPS

DEADLINE = 300
EXAMPLES = 1000 if IS_WHOLE else 20
URL = "https://hooks.example.com/done"

KEY, LOOKUP, NONE = SubmissionGuarantee
errors = st.sampled_from(
    [
        UpstreamUnclear("The connection broke off."),
        UpstreamBusy("The provider is busy.", retry_after=3.0),
        UpstreamDenied("The provider refused the gateway's credentials."),
    ]
)
reports = st.sampled_from(
    [
        JobReport(JobState.RUNNING),
        JobReport(JobState.RUNNING, retry_after=7.0),
        JobReport(JobState.FAILED, message="The prompt is not allowed."),
        UpstreamGone("The provider does not know the job."),
    ]
)
LAGS = [0.001, 0.05, 2.0]
ACTIONS = (
    "kill",
    "record away",
    "counters away",
    "counters lose",
    "store away",
    "provider away",
    "all well",
    "cancel",
    "delete",
    "touch",
    "none",
)


@dataclass
class Scenario:
    """What happens: how the provider is, and what befalls the gateway when."""

    guarantee: SubmissionGuarantee = KEY
    lag: float = 0.01
    latency: float = 0.02
    by_hand: tuple[bool, ...] = (False,)
    names_route: bool = False
    submissions: list[Outcome] = field(default_factory=list)
    polls: list[UpstreamError | JobReport] = field(default_factory=list)
    finds: list[UpstreamError] = field(default_factory=list)
    fetches: list[UpstreamError] = field(default_factory=list)
    events: list[tuple[float, str, int]] = field(default_factory=list)
    kills: tuple[str, ...] = ()
    """Named steps at which the operator dies, each as often as it is there."""
    callback_url: str | None = None


def draw_scenarios(*more_actions: str) -> st.SearchStrategy[Scenario]:
    """Scenarios in which `more_actions` happen beside the usual ones."""
    pauses = st.sampled_from([0.0, 0.001, 0.003, 0.005, 0.01, 0.05, 0.5, 1.0, 4.0, 20.0])
    actions = st.sampled_from([*ACTIONS, *more_actions])
    return st.builds(
        Scenario,
        guarantee=st.sampled_from([KEY, LOOKUP, NONE]),
        lag=st.sampled_from(LAGS),
        latency=st.sampled_from([0.002, 0.1, 3.0]),
        by_hand=st.lists(st.booleans(), min_size=1, max_size=3).map(tuple),
        names_route=st.booleans(),
        submissions=st.lists(st.sampled_from(Outcome), max_size=4),
        polls=st.lists(errors | reports, max_size=4),
        finds=st.lists(errors, max_size=2),
        fetches=st.lists(errors, max_size=2),
        events=st.lists(
            st.tuples(pauses, actions, st.integers(min_value=0, max_value=2)), max_size=12
        ),
        kills=st.lists(st.sampled_from(TASK_STEPS), max_size=6).map(tuple),
        callback_url=st.sampled_from([None, URL]),
    )


async def befall(sim: Simulation, action: str, name: str, number: int) -> None:
    if action == "kill":
        await sim.restart()
    elif action == "record away":
        sim.kube.away = True
    elif action == "counters away":
        sim.counters.away = True
    elif action == "counters lose":
        sim.counters.lose()
    elif action == "store away":
        sim.store.away = True
    elif action == "provider away":
        sim.upstream.away = True
    elif action == "all well":
        make_well(sim)
    elif action == "twin":
        sim.boot_twin(LAGS[number])
    elif sim.kube.away or not sim.is_there(name):
        return
    with suppress(WriteConflict, ObjectNotFound):  # an admin who comes too late has nothing to say
        if action == "cancel":
            await sim.cancel(name)
        elif action == "delete":
            await sim.kube.delete(TASKS, name)
        elif action == "touch":
            await sim.change(name, {"metadata": {"annotations": {"note": "x"}}})


def make_well(sim: Simulation) -> None:
    sim.kube.away = sim.counters.away = sim.store.away = sim.upstream.away = False


def is_done_with(sim: Simulation, name: str) -> bool:
    """Whether nothing is left to do; a task deleted before it was taken in is nobody's business."""
    finalizers = sim.history[name][-1]["metadata"].get("finalizers") or ()
    if not sim.is_there(name) and TASK_FINALIZER not in finalizers:
        return True
    return sim.is_closed(name)


async def run(scenario: Scenario) -> Simulation:
    """Plays a scenario to its end, and checks what must be true of its tasks then."""
    upstream = FakeUpstream(
        scenario.guarantee, latency=scenario.latency, submit_seconds=scenario.latency + 10
    )
    upstream.submissions.extend(scenario.submissions)
    upstream.polls.extend(scenario.polls)
    upstream.finds.extend(scenario.finds)
    upstream.fetches.extend(scenario.fetches)
    sim = Simulation(upstream, lag=scenario.lag)
    sim.arm(*scenario.kills)
    await sim.boot()
    request = {
        "route": ROUTE if scenario.names_route else None,
        "callbackUrl": scenario.callback_url,
    }
    async with sim.reviving():
        names = [
            await sim.apply(f"task-by-hand-{number}", deadline=DEADLINE, **request)
            if by_hand
            else await sim.admit(deadline=DEADLINE, **request)
            for number, by_hand in enumerate(scenario.by_hand)
        ]
        for seconds, action, number in scenario.events:
            await sim.pass_time(seconds)
            await befall(sim, action, names[number % len(names)], number)
        make_well(sim)
        await sim.wait(
            lambda: all(is_done_with(sim, name) for name in names),
            seconds=DEADLINE + 120,
            what="I1: the end of every task",
        )
        await sim.open_books("demo")
        await sim.pass_time(800)
    check_tasks(sim, names)
    return sim


def check_tasks(sim: Simulation, names: Iterable[str]) -> None:
    sim.check_history()
    for name in names:
        jobs = sim.count_jobs(name)
        assert jobs <= 1, f"I2: {name} has {jobs} jobs"
        status = sim.status(name)
        if status.get("phase") == "Completed":
            assert jobs == 1
            assert status["chargedMicros"] == QUOTE, "I7: what completed costs its price"
    for operator in filter(None, (sim.operator, sim.twin)):
        assert operator.is_running, operator.failure
        assert len(operator.cache) == 0


async def check_money(sim: Simulation) -> None:
    """I7: charged is what completed, once, and nothing is held."""
    charged = sum(sim.status(name).get("chargedMicros", 0) for name in sim.history)
    await sim.open_books("demo")
    assert await sim.balance() == (charged, 0)


@pytest.mark.parametrize("step", TASK_STEPS)
@in_virtual_time
async def test_kill_at_any_step_loses_and_doubles_nothing(step: str) -> None:
    sim = await run(Scenario(kills=(step,), callback_url=URL))
    await check_killed(sim)


@pytest.mark.parametrize("guarantee", [KEY, LOOKUP])
@pytest.mark.parametrize("by_hand", [False, True], ids=["rest", "kubectl"])
@in_virtual_time
async def test_kill_at_each_step_of_one_life_loses_and_doubles_nothing(
    guarantee: SubmissionGuarantee, by_hand: bool
) -> None:
    sim = await run(Scenario(guarantee, by_hand=(by_hand,), kills=TASK_STEPS, callback_url=URL))
    await check_killed(sim)


async def check_killed(sim: Simulation) -> None:
    """The task completed although its operator died at every armed step."""
    assert not +sim.failpoints.left
    await check_money(sim)
    assert [sim.status(name)["phase"] for name in sim.history] == ["Completed"]
    assert len({attempt.headers["webhook-id"] for attempt in sim.receivers.attempts}) == 1
    await sim.check_archive()


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(draw_scenarios())
@example(Scenario(events=[(0.005, "kill", 0)] * 12))
@example(Scenario(names_route=True, events=[(0.005, "kill", 0)] * 12))
@example(
    Scenario(
        names_route=True,
        submissions=[Outcome.UNCLEAR_WITH_JOB],
        events=[(0.03, "kill", 0), (0.01, "touch", 0), (0.01, "kill", 0)],
    )
)
@example(Scenario(guarantee=LOOKUP, events=[(0.02, "kill", 0)] * 12))
@example(
    Scenario(guarantee=NONE, submissions=[Outcome.UNCLEAR_WITH_JOB], events=[(0.5, "kill", 0)])
)
@example(Scenario(by_hand=(True,), events=[(0.003, "kill", 0)] * 8))
@example(Scenario(events=[(0.0, "delete", 0), (0.003, "record away", 0), (0.0, "kill", 0)]))
@example(Scenario(events=[(1.0, "counters lose", 0), (1.0, "kill", 0)]))
@example(
    Scenario(
        by_hand=(True,),
        lag=0.001,
        latency=0.002,
        events=[(0.005, "counters lose", 0), (0.0, "kill", 0)],
    )
)
@in_virtual_time
async def test_invariants_hold(scenario: Scenario) -> None:
    await check_money(await run(scenario))


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(draw_scenarios("twin", "twin", "twin"))
@example(Scenario(guarantee=LOOKUP, events=[(0.0, "twin", 0)]))
@example(Scenario(guarantee=NONE, latency=3.0, events=[(0.003, "twin", 0), (0.5, "kill", 0)]))
@in_virtual_time
async def test_two_owners_at_once_do_no_harm(scenario: Scenario) -> None:
    """As when one was paused and another took its place. Tasks alone: money is the counters'."""
    await run(scenario)
