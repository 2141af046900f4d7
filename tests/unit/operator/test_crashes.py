"""Crashes, faults and admins in any order: the invariants hold all the same.

The operator is killed with all it knows, wherever it is, and another goes on from the record.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

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
from tests.unit.operator.harness import QUOTE, ROUTE, TASKS, Stage

DEADLINE = 300

KEY, LOOKUP, NONE = (
    SubmissionGuarantee.IDEMPOTENCY_KEY,
    SubmissionGuarantee.LOOKUP,
    SubmissionGuarantee.NONE,
)
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
class Scene:
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


def draw_scenes(*more_actions: str) -> st.SearchStrategy[Scene]:
    """Scenes in which `more_actions` happen beside the usual ones."""
    pauses = st.sampled_from([0.0, 0.001, 0.003, 0.005, 0.01, 0.05, 0.5, 1.0, 4.0, 20.0])
    actions = st.sampled_from([*ACTIONS, *more_actions])
    return st.builds(
        Scene,
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
    )


async def befall(stage: Stage, action: str, name: str, number: int) -> None:
    """Has one thing happen."""
    if action == "kill":
        await stage.restart()
    elif action == "record away":
        stage.kube.away = True
    elif action == "counters away":
        stage.counters.away = True
    elif action == "counters lose":
        stage.counters.lose()
    elif action == "store away":
        stage.store.away = True
    elif action == "provider away":
        stage.upstream.away = True
    elif action == "all well":
        make_well(stage)
    elif action == "twin":
        stage.boot_twin(LAGS[number])
    elif stage.kube.away or not stage.is_there(name):
        return
    with suppress(WriteConflict, ObjectNotFound):  # an admin who comes too late has nothing to say
        if action == "cancel":
            await stage.cancel(name)
        elif action == "delete":
            await stage.kube.delete(TASKS, name)
        elif action == "touch":
            await stage.change(name, {"metadata": {"annotations": {"note": "x"}}})


def make_well(stage: Stage) -> None:
    """Ends every fault."""
    stage.kube.away = stage.counters.away = stage.store.away = stage.upstream.away = False


def is_done_with(stage: Stage, name: str) -> bool:
    """Whether nothing is left to do; a task deleted before it was taken in is nobody's business."""
    finalizers = stage.history[name][-1]["metadata"].get("finalizers") or ()
    if not stage.is_there(name) and TASK_FINALIZER not in finalizers:
        return True
    return stage.is_closed(name)


async def run(scene: Scene) -> Stage:
    """Plays a scene to its end, and checks what must be true of its tasks then."""
    upstream = FakeUpstream(
        scene.guarantee, latency=scene.latency, submit_seconds=scene.latency + 10
    )
    upstream.submissions.extend(scene.submissions)
    upstream.polls.extend(scene.polls)
    upstream.finds.extend(scene.finds)
    upstream.fetches.extend(scene.fetches)
    stage = Stage(upstream, lag=scene.lag)
    await stage.boot()
    route = ROUTE if scene.names_route else None
    names = [
        await stage.apply(f"task-by-hand-{number}", deadline=DEADLINE)
        if by_hand
        else await stage.admit(deadline=DEADLINE, route=route)
        for number, by_hand in enumerate(scene.by_hand)
    ]
    for seconds, action, number in scene.events:
        await stage.pass_time(seconds)
        await befall(stage, action, names[number % len(names)], number)
    make_well(stage)
    await stage.wait(
        lambda: all(is_done_with(stage, name) for name in names),
        seconds=DEADLINE + 120,
        what="I1: the end of every task",
        step=1.0,
    )
    await stage.open_books("demo")
    await stage.pass_time(800)
    check_tasks(stage, names)
    return stage


def check_tasks(stage: Stage, names: Iterable[str]) -> None:
    """The invariants of tasks, once all is quiet."""
    stage.check_history()
    for name in names:
        jobs = stage.count_jobs(name)
        assert jobs <= 1, f"I2: {name} has {jobs} jobs"
        status = stage.status(name)
        if status.get("phase") == "Completed":
            assert jobs == 1
            assert status["chargedMicros"] == QUOTE, "I7: what completed costs its price"
    for operator in filter(None, (stage.operator, stage.twin)):
        assert operator.is_running, operator.failure
        assert len(operator.cache) == 0


async def check_money(stage: Stage) -> None:
    """I7: charged is what completed, once, and nothing is held."""
    charged = sum(stage.status(name).get("chargedMicros", 0) for name in stage.history)
    await stage.open_books("demo")
    assert await stage.balance() == (charged, 0)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(draw_scenes())
@example(Scene(events=[(0.005, "kill", 0)] * 12))
@example(Scene(names_route=True, events=[(0.005, "kill", 0)] * 12))
@example(
    Scene(
        names_route=True,
        submissions=[Outcome.UNCLEAR_WITH_JOB],
        events=[(0.03, "kill", 0), (0.01, "touch", 0), (0.01, "kill", 0)],
    )
)
@example(Scene(guarantee=LOOKUP, events=[(0.02, "kill", 0)] * 12))
@example(Scene(guarantee=NONE, submissions=[Outcome.UNCLEAR_WITH_JOB], events=[(0.5, "kill", 0)]))
@example(Scene(by_hand=(True,), events=[(0.003, "kill", 0)] * 8))
@example(Scene(events=[(0.0, "delete", 0), (0.003, "record away", 0), (0.0, "kill", 0)]))
@example(Scene(events=[(1.0, "counters lose", 0), (1.0, "kill", 0)]))
@example(
    Scene(
        by_hand=(True,),
        lag=0.001,
        latency=0.002,
        events=[(0.005, "counters lose", 0), (0.0, "kill", 0)],
    )
)
def test_invariants_hold(scene: Scene) -> None:
    @in_virtual_time
    async def play() -> None:
        await check_money(await run(scene))

    play()


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(draw_scenes("twin", "twin", "twin"))
@example(Scene(guarantee=LOOKUP, events=[(0.0, "twin", 0)]))
@example(Scene(guarantee=NONE, latency=3.0, events=[(0.003, "twin", 0), (0.5, "kill", 0)]))
def test_two_owners_at_once_do_no_harm(scene: Scene) -> None:
    """As when one was paused and another took its place. Tasks alone: money is the counters'."""

    @in_virtual_time
    async def play() -> None:
        await run(scene)

    play()
