"""Ended tasks, their charges, and the usage objects of their account and days."""

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from gateway_core.api.ids import ACCOUNT_LABEL, FOLDED_LABEL, TASK_FINALIZER
from gateway_core.api.resource import Object, skeleton
from gateway_core.api.task import GatewayTask
from gateway_core.api.usage import GatewayUsage, usage_name
from gateway_core.billing.charges import Charge
from gateway_core.kube.errors import WriteConflict
from tests.fakes.kubernetes import FakeKubernetes

DAY = "2026-11-21"
NOW = datetime(2026, 11, 21, 10, 1, tzinfo=UTC)
TASKS = GatewayTask.plural


def put_task(kube: FakeKubernetes, number: int, micros: int, **changes: Any) -> Object:
    """A task that has ended and waits to be closed."""
    request = {"accountName": "demo", "service": "sim", "action": "a", "modelId": "m"}
    return kube.put(
        TASKS,
        {
            "metadata": {
                "name": f"task-{number}",
                "labels": {ACCOUNT_LABEL: "demo"},
                "finalizers": [TASK_FINALIZER],
                **changes,
            },
            "spec": {"request": request},
            "status": {
                "phase": "Completed",
                "work": "Settled",
                "chargedMicros": micros,
                "completionTime": f"{DAY}T10:00:00Z",
            },
        },
    )


async def mark(kube: Any, task: Object) -> None:
    """The write after the aggregation, on the newest version of the task."""
    while True:
        with suppress(WriteConflict):
            newest = await kube.get(TASKS, task["metadata"]["name"])
            marks = {"labels": {FOLDED_LABEL: "20261121T100000Z"}, "finalizers": []}
            await kube.patch(TASKS, newest, {"metadata": marks})
            return


def make_charge(uid: str, micros: int = 5, minute: int = 720, **changes: Any) -> Charge:
    base: dict[str, Any] = {
        "name": f"task-{uid}",
        "uid": uid,
        "account": "demo",
        "day": DAY,
        "minute": minute,
        "micros": micros,
        "failed": False,
        "key_name": "first",
        "model_id": "sim-q4",
        "operation": "sim/reference_to_video",
    }
    return Charge(**{**base, **changes})


def make_usage(status: dict[str, Any], day: str | None = DAY) -> dict[str, Any]:
    """The usage object of a day, or of all past days without one."""
    head = skeleton(GatewayUsage, usage_name("demo", day), uid=f"uid-{day}")
    spec = {"accountName": "demo", **({"day": day} if day else {})}
    return {**head, "spec": spec, "status": status}
