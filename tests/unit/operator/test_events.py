"""Events are bounded for each object and for the process; each reason has a bucket of its own."""

import asyncio
from contextvars import ContextVar
from typing import Any

import kopf
import pytest

from gateway_operator.events import BURST, EVENTS_PER_SECOND, QUIET_SECONDS, Events, KopfPoster
from tests.fakes.clock import in_virtual_time
from tests.fakes.kubernetes import FakeKubernetes

Posted = tuple[str, str, str, str]


def make(name: str, **spec: Any) -> dict[str, Any]:
    head = {"apiVersion": "modelgateway.dev/v1alpha1", "kind": "GatewayTask", "spec": spec}
    return {**head, "metadata": {"name": name, "uid": f"uid of {name}", "namespace": "n"}}


class Bench:
    """What was posted."""

    def __init__(self) -> None:
        self.posted = list[Posted]()
        self.events = Events(FakeKubernetes(), self._post)

    def _post(self, obj: dict[str, Any], kind: str, reason: str, message: str) -> None:
        self.posted.append((obj["metadata"]["name"], kind, reason, message))


@in_virtual_time
async def test_reason_is_reported_once_in_ten_minutes() -> None:
    bench = Bench()
    for number in range(100):
        bench.events.warn(make("a"), reason="Waiting", message=str(number))
    bench.events.info(make("a"), reason="Submitted", message="job-1")
    bench.events.warn(make("b"), reason="Waiting", message="b")
    await asyncio.sleep(QUIET_SECONDS + 1)
    bench.events.warn(make("a"), reason="Waiting", message="still")
    assert bench.posted == [
        ("a", "Warning", "Waiting", "0"),
        ("a", "Normal", "Submitted", "job-1"),
        ("b", "Warning", "Waiting", "b"),
        ("a", "Warning", "Waiting", "still"),
    ]


@in_virtual_time
async def test_process_posts_a_burst_and_then_a_steady_rate() -> None:
    bench = Bench()
    for number in range(1000):
        bench.events.info(make(f"task-{number}"), reason="Submitted", message="job")
    assert len(bench.posted) == BURST
    # progress of healthy tasks hides no failure
    bench.events.warn(make("task-1"), reason="Failed", message="refused")
    assert bench.posted.pop()[2] == "Failed"
    await asyncio.sleep(10)
    for number in range(1000, 2000):
        bench.events.info(make(f"task-{number}"), reason="Submitted", message="job")
    assert len(bench.posted) == BURST + 10 * EVENTS_PER_SECOND


@in_virtual_time
async def test_flood_of_waiting_tasks_hides_no_other_warning() -> None:
    bench = Bench()
    for number in range(10_000):
        bench.events.warn(make(f"task-{number}"), reason="WaitingForProvider", message="busy")
    bench.events.warn(make("account"), reason="NotReady", message="no Secret")
    assert bench.posted[-1] == ("account", "Warning", "NotReady", "no Secret")


@in_virtual_time
async def test_account_has_half_of_the_events_of_a_reason() -> None:
    bench = Bench()
    flood = [make(f"task-{number}", request={"accountName": "a"}) for number in range(10_000)]
    for task in flood:
        bench.events.warn(task, reason="Failed", message="refused")
    assert len(bench.posted) == BURST / 2
    await asyncio.sleep(10)
    for task in reversed(flood):
        bench.events.warn(task, reason="Failed", message="refused")
    assert len(bench.posted) == (BURST + 10 * EVENTS_PER_SECOND) / 2
    other = make("other", request={"accountName": "b"})
    bench.events.warn(other, reason="Failed", message="refused")
    assert bench.posted[-1][0] == "other"


@in_virtual_time
async def test_task_that_the_flood_hid_is_reported_later() -> None:
    bench = Bench()
    for number in range(int(BURST)):
        bench.events.warn(make(f"task-{number}"), reason="WaitingForProvider", message="busy")
    bench.events.warn(make("last"), reason="WaitingForProvider", message="busy")
    assert len(bench.posted) == BURST
    await asyncio.sleep(1)
    bench.events.warn(make("last"), reason="WaitingForProvider", message="busy")
    assert bench.posted[-1][0] == "last"


def test_poster_posts_in_the_context_of_kopfs_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    queue: ContextVar[str] = ContextVar("queue", default="none")
    posted = list[tuple[str, dict[str, Any]]]()
    monkeypatch.setattr(kopf, "event", lambda obj, **named: posted.append((queue.get(), named)))
    poster = KopfPoster()
    poster(make("a"), "Normal", "Submitted", "before any handler has run")
    token = queue.set("kopf's")
    poster.bind()
    queue.reset(token)
    poster(make("a"), "Normal", "Submitted", "job-1")
    named = {"type": "Normal", "reason": "Submitted", "message": "job-1"}
    assert posted == [("kopf's", named)]
