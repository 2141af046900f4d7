"""What the operator shows of its work: counts and times, how much there is, traces, log lines."""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
import structlog
from prometheus_client import CollectorRegistry

from gateway_core.api.ids import (
    REQUEST_ID_ANNOTATION,
    TRACEPARENT_ANNOTATION,
    name_to_id,
)
from gateway_core.api.task import GatewayTask
from gateway_core.providers.upstream import (
    JobInput,
    JobReport,
    JobState,
    OutputRejected,
    UpstreamBusy,
    UpstreamDenied,
    UpstreamError,
    UpstreamGone,
    UpstreamRejected,
    UpstreamUnclear,
)
from gateway_operator.gauges import Gauges
from gateway_operator.health import Heartbeat
from gateway_operator.metrics import Metrics
from gateway_operator.tasks.calls import ProviderCalls, TaskTraces, name_outcome
from tests.fakes.clock import in_virtual_time
from tests.fakes.moderation import FakeModeration
from tests.fakes.tracing import FakeSpan, FakeTracer
from tests.fakes.upstream import FakeUpstream, Outcome
from tests.unit.operator.batch_harness import build_batches
from tests.unit.operator.environment import read_now
from tests.unit.operator.harness import Operator, Simulation

TRACE = "a" * 32
PARENT = f"00-{TRACE}-{'b' * 16}-01"


class NotingUpstream(FakeUpstream):
    """Keeps what it was given, and what a line logged at that moment would have said."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.inputs: list[JobInput] = []
        self.bound: list[dict[str, Any]] = []

    async def submit(self, job: JobInput) -> str:
        self.inputs.append(job)
        self.bound.append(dict(structlog.contextvars.get_contextvars()))
        return await super().submit(job)


class Shown:
    """What Prometheus would be shown."""

    def __init__(self, *registries: CollectorRegistry) -> None:
        self._registries = registries

    def read(self, name: str, **labels: str) -> float | None:
        found = [r.get_sample_value(name, labels) for r in self._registries]
        return next((value for value in found if value is not None), None)


def show(operator: Operator) -> Shown:
    registry = CollectorRegistry()
    registry.register(build_gauges(operator, read_now))
    return Shown(operator.metrics.registry, registry)


def build_gauges(operator: Operator, now: Callable[[], datetime]) -> Gauges:
    async def renew() -> None:
        """No heartbeat comes."""

    batches = build_batches(operator, FakeModeration())
    heartbeat = Heartbeat(renew, 10)
    return Gauges(
        operator.controller,
        batches,
        operator.aggregator,
        operator.outputs,
        operator.callbacks,
        heartbeat,
        now,
    )


@in_virtual_time
async def test_completed_task_is_counted_and_timed() -> None:
    sim = Simulation()
    operator = await sim.boot()
    shown = show(operator)
    await sim.finish(await sim.admit(callbackUrl="https://hooks.example.com/x"))
    assert shown.read("gateway_tasks_ended_total", reason="Completed") == 1
    assert shown.read("gateway_task_duration_seconds_count", phase="Completed") == 1
    assert shown.read("gateway_task_submit_delay_seconds_count") == 1
    assert shown.read("gateway_task_detection_lag_seconds_count") == 1
    assert shown.read("gateway_task_record_delay_seconds_count") == 1
    assert shown.read("gateway_tasks_folded_total") == 1
    assert shown.read("gateway_callback_attempts_total", state="Delivered") == 1
    assert shown.read("gateway_callback_attempt_duration_seconds_count") == 1
    assert shown.read("gateway_callback_delay_seconds_count") == 1
    for call in ("submit", "poll", "copy"):
        labels = {"provider": "simulated", "call": call}
        made = shown.read("gateway_upstream_calls_total", outcome="ok", **labels)
        assert made
        assert shown.read("gateway_upstream_call_duration_seconds_count", **labels) == made


async def read_sums(upstream: FakeUpstream) -> tuple[float, float, float]:
    """The bound of the lag, the delay of the record, and the true lag of one task's end."""
    sim = Simulation(upstream)
    operator = await sim.boot()
    name = await sim.admit()
    await sim.wait(lambda: sim.is_ended(name), seconds=300)
    true = asyncio.get_running_loop().time() - upstream.jobs[0].begun - upstream.seconds
    await sim.finish(name)
    shown = show(operator)
    lag = shown.read("gateway_task_detection_lag_seconds_sum")
    delay = shown.read("gateway_task_record_delay_seconds_sum")
    assert lag is not None
    assert delay is not None
    return lag, delay, true


@in_virtual_time
async def test_record_delay_includes_failed_copies() -> None:
    upstream = FakeUpstream()
    upstream.fetches.append(UpstreamBusy("later", retry_after=20.0))
    lag, delay, true = await read_sums(upstream)
    assert 20 <= delay < 40
    assert delay <= true <= lag + 0.01


@in_virtual_time
async def test_detection_lag_starts_at_last_running_poll() -> None:
    upstream = FakeUpstream(seconds=50, poll_interval=(20.0, 20.0))
    lag, delay, true = await read_sums(upstream)
    assert upstream.count("poll") > 2
    before, last = upstream.times("poll")[-2:]
    assert lag == pytest.approx(last - before, abs=0.5)
    assert true <= lag + 0.01
    assert delay < 1


@in_virtual_time
async def test_detection_lag_starts_at_submission_without_running_poll() -> None:
    upstream = FakeUpstream(seconds=1, poll_interval=(20.0, 20.0))
    lag, _, true = await read_sums(upstream)
    assert upstream.count("poll") == 1
    assert lag == pytest.approx(true + 1, abs=0.5)


@in_virtual_time
async def test_delay_of_polls_is_measured() -> None:
    sim = Simulation(FakeUpstream(seconds=10))
    operator = await sim.boot()
    await sim.admit()
    await sim.wait(lambda: sim.upstream.count("poll"))
    shown = show(operator)
    punctual = shown.read("gateway_poll_delay_seconds_sum")
    assert punctual is not None
    assert punctual < 0.5
    sim.kube.remove("gatewayproviders", "simulated")
    await sim.pass_time(60)
    polls = sim.upstream.count("poll")
    sim.put_provider()
    await sim.wait(lambda: sim.upstream.count("poll") > polls)
    late = shown.read("gateway_poll_delay_seconds_sum")
    assert late is not None
    assert 50 < late < 70


@in_virtual_time
async def test_failures_are_counted_by_outcome() -> None:
    upstream = FakeUpstream()
    upstream.submissions.extend([Outcome.BUSY, Outcome.UNCLEAR_WITHOUT_JOB])
    upstream.polls.extend([UpstreamGone("who?"), JobReport(JobState.FAILED, message="no")])
    sim = Simulation(upstream)
    operator = await sim.boot()
    await sim.finish(await sim.admit(), seconds=200)
    shown = show(operator)

    def count(call: str, outcome: str) -> float | None:
        labels = {"provider": "simulated", "call": call, "outcome": outcome}
        return shown.read("gateway_upstream_calls_total", **labels)

    assert (count("submit", "busy"), count("submit", "unclear")) == (1, 1)
    assert count("poll", "gone") == 1
    assert shown.read("gateway_tasks_ended_total", reason="GenerationFailed") == 1
    assert shown.read("gateway_task_duration_seconds_count", phase="Failed") == 1
    assert shown.read("gateway_task_detection_lag_seconds_count") == 1
    assert shown.read("gateway_task_record_delay_seconds_count") == 1


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (UpstreamRejected("x"), "rejected"),
        (OutputRejected("x"), "rejected"),
        (UpstreamBusy("x"), "busy"),
        (UpstreamDenied("x"), "denied"),
        (UpstreamUnclear("x"), "unclear"),
        (UpstreamGone("x"), "gone"),
        (UpstreamError("x"), "unclear"),
    ],
)
def test_each_error_type_has_an_outcome_label(error: UpstreamError, word: str) -> None:
    assert name_outcome(error) == word


def test_cancelled_call_is_counted_as_cut_short() -> None:
    metrics = Metrics()
    providers: Any = None
    calls = ProviderCalls(providers, metrics, TaskTraces(), lambda _notice: None)

    def cut() -> None:
        with calls.time("p", "poll"):
            raise TimeoutError

    with pytest.raises(TimeoutError):
        cut()
    labels = {"provider": "p", "call": "poll", "outcome": "cut_short"}
    assert Shown(metrics.registry).read("gateway_upstream_calls_total", **labels) == 1


@in_virtual_time
async def test_gauges_count_tasks_by_phase_and_overdue_ones() -> None:
    sim = Simulation(FakeUpstream(seconds=500))
    operator = await sim.boot()
    shown = show(operator)
    assert shown.read("gateway_tasks", phase="Running") == 0
    assert shown.read("gateway_task_oldest_age_seconds", phase="Running") == 0
    names = [await sim.admit(deadline=300) for _ in range(3)]
    await sim.wait(lambda: all(sim.status(n).get("phase") == "Running" for n in names))
    await sim.wait(lambda: shown.read("gateway_tasks", phase="Running") == 3)
    await sim.pass_time(30)
    age = shown.read("gateway_task_oldest_age_seconds", phase="Running")
    assert age is not None
    assert 30 <= age < 32
    assert shown.read("gateway_tasks_overdue") == 0
    # at any one moment a poll may be under way
    await sim.wait(lambda: shown.read("gateway_work_queue_tasks", state="scheduled") == 3)
    # the controller would end them; gauges of the same tasks an hour later
    late = CollectorRegistry()
    late.register(build_gauges(operator, lambda: read_now() + timedelta(hours=1)))
    assert late.get_sample_value("gateway_tasks_overdue") == 3


def spans_of(tracer: FakeTracer, name: str) -> list[FakeSpan]:
    return list(tracer.named(name))


STEPS = ("take in", "submit", "poll", "copy", "complete", "close")


@in_virtual_time
async def test_each_step_is_a_span_of_the_trace_of_the_object() -> None:
    tracer = FakeTracer()
    sim = Simulation(FakeUpstream(seconds=20))
    sim.tracer, sim.annotations = tracer, {TRACEPARENT_ANNOTATION: PARENT}
    await sim.boot()
    name = await sim.admit(callbackUrl="https://hooks.example.com/x")
    await sim.finish(name)
    await sim.wait(lambda: all(span.is_ended for span in tracer.spans), what="the spans' end")
    for step in (*STEPS, "callback attempt"):
        [span] = spans_of(tracer, step)
        assert str(span.parent) == PARENT, step
        assert span.facts["gateway.task"] == name
    [poll] = spans_of(tracer, "poll")
    assert [event for event, _ in poll.events] == ["poll"] * sim.upstream.count("poll")
    assert poll.events[-1][1] == {"outcome": "succeeded"}


@in_virtual_time
async def test_trace_continues_after_a_kill() -> None:
    tracer = FakeTracer()
    sim = Simulation(FakeUpstream(seconds=20))
    sim.tracer, sim.annotations = tracer, {TRACEPARENT_ANNOTATION: PARENT}
    await sim.boot()
    name = await sim.run()
    await sim.restart()
    await sim.finish(name)
    assert {span.context.trace_id for span in tracer.spans} == {TRACE}
    assert {span.name for span in tracer.spans} == set(STEPS)


@in_virtual_time
async def test_task_from_kubectl_has_a_trace_named_by_its_uid() -> None:
    tracer = FakeTracer()
    sim = Simulation()
    sim.tracer = tracer
    await sim.boot()
    name = await sim.apply()
    await sim.finish(name)
    uid = sim.uid(name).replace("-", "")
    assert {span.context.trace_id for span in tracer.spans} == {uid}
    assert {span.parent for span in tracer.spans} == {None}


@in_virtual_time
async def test_failed_span_does_not_contain_provider_message() -> None:
    tracer = FakeTracer()
    upstream = FakeUpstream()
    upstream.submissions.append(Outcome.REJECTED)
    sim = Simulation(upstream)
    sim.tracer = tracer
    await sim.boot()
    await sim.finish(await sim.admit())
    [span] = spans_of(tracer, "submit")
    assert span.problem == "UpstreamRejected"


@pytest.mark.parametrize("tells", [True, False])
@in_virtual_time
async def test_traceparent_is_sent_only_where_configured(tells: bool) -> None:
    tracer = FakeTracer()
    upstream = NotingUpstream()
    sim = Simulation(upstream)
    sim.tracer = tracer
    sim.sends_traceparent = tells
    await sim.boot()
    await sim.finish(await sim.admit())
    [span] = spans_of(tracer, "submit")
    told = [job.traceparent for job in upstream.inputs]
    assert told == [str(span.context) if tells else None]


@in_virtual_time
async def test_log_lines_name_task_account_request_and_trace() -> None:
    upstream = NotingUpstream()
    sim = Simulation(upstream)
    sim.annotations = {TRACEPARENT_ANNOTATION: PARENT, REQUEST_ID_ANNOTATION: "req_1"}
    await sim.boot()
    first = await sim.admit()
    sim.annotations = {}
    second = await sim.apply("task-by-hand")
    for name in (first, second):
        await sim.finish(name)
    by_task = {entry["task"]: entry for entry in upstream.bound}
    common = {"account": "demo"}
    known = {"request_id": "req_1", "trace_id": TRACE}
    assert by_task[name_to_id(first)] == {**common, **known, "task": name_to_id(first)}
    assert by_task[name_to_id(second)] == {**common, "task": name_to_id(second)}


@in_virtual_time
async def test_sweep_measures_age_of_oldest_reservations() -> None:
    sim = Simulation(FakeUpstream(seconds=500))
    operator = await sim.boot()
    shown = show(operator)
    await sim.admit()
    await sim.pass_time(400)
    age = shown.read("gateway_reservation_oldest_age_seconds", state="running")
    assert age is not None
    assert 300 < age < 400
    assert shown.read("gateway_reservation_oldest_age_seconds", state="unaccounted") == 0
    done = shown.read("gateway_sweep_last_success_timestamp_seconds", sweep="holds")
    assert done is not None
    assert 0 <= read_now().timestamp() - done <= 61


def test_invalid_traceparent_annotation_is_ignored() -> None:
    tracer = FakeTracer()
    traces = TaskTraces(tracer)
    for text in ("nonsense", "", "00-" + "0" * 32 + "-" + "b" * 16 + "-01"):
        task = GatewayTask.model_validate(
            {
                "metadata": {
                    "name": "task-a",
                    "uid": "12345678-1234-1234-1234-123456789abc",
                    "annotations": {TRACEPARENT_ANNOTATION: text},
                },
                "spec": {
                    "request": {
                        "accountName": "demo",
                        "service": "sim",
                        "action": "reference_to_video",
                        "modelId": "m",
                        "input": "{}",
                    }
                },
            }
        )
        traces.begin(task, "take in").end()
    assert {span.parent for span in tracer.spans} == {None}
    assert {s.context.trace_id for s in tracer.spans} == {"123456781234123412341234" + "56789abc"}
