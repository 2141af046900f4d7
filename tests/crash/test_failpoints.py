"""F1: kill -9 of the operator and the API at every named step, with tasks in flight (I1 to I9)."""

import asyncio
import secrets
from pathlib import Path

import pytest

from gateway_apiserver.failpoints import NAMES as API_STEPS
from gateway_operator.failpoints import NAMES as OPERATOR_STEPS
from tests.crash.history import check_money, is_closed
from tests.crash.shares import share
from tests.servers.world import ROOT, check_invariants, wait_for
from tests.unit.operator import test_batch_kills

pytestmark = pytest.mark.slow

KILLS_A_STEP = 25
TASKS_A_KILL = 3
HIT = 2
"""The step is passed once before it kills, so that tasks are at different places then."""

CALLBACKS = "tests/crash/test_callbacks.py"
RETENTION = "tests/crash/test_retention.py"
JOURNAL = "tests/crash/test_journal.py"
JOURNAL_STEPS = ("after-journal-fold", "before-journal-removal", "after-journal-removal")
KEYS = "tests/crash/test_keys.py"
UPLOADS = "tests/crash/test_uploads.py"
UPLOAD_STEPS = tuple(step for step in API_STEPS if "upload" in step or "part" in step)
STORED = "tests/crash/test_stored.py"
STORED_STEPS = tuple(
    step
    for step in OPERATOR_STEPS
    if step.startswith(("after-file-", "after-upload-")) or step == "before-orphan-removal"
)
FILE_STEPS = ("after-file-bytes", "after-file-claim", "after-file-object")
BATCH_STEPS = tuple(step for step in OPERATOR_STEPS if "-batch-" in step)
ELSEWHERE = {
    **dict.fromkeys(("before-callback", "after-callback", "after-callback-record"), CALLBACKS),
    **dict.fromkeys(("before-removal", "after-removal"), RETENTION),
    **dict.fromkeys(JOURNAL_STEPS, JOURNAL),
    "after-key-secret": KEYS,
    **dict.fromkeys(UPLOAD_STEPS, UPLOADS),
    **dict.fromkeys((*STORED_STEPS, *FILE_STEPS), STORED),
}
"""Steps that a plain task does not come by, and the tests that kill there."""

STEPS = [
    *(
        ("operator", step)
        for step in OPERATOR_STEPS
        if step not in ELSEWHERE and step not in BATCH_STEPS
    ),
    *(("api", step) for step in API_STEPS if step not in ELSEWHERE),
]


def count_kills(place: int) -> int:
    """The kills of one step: all steps together have their share."""
    total, steps = share(KILLS_A_STEP * len(STEPS)), len(STEPS)
    return total * (place + 1) // steps - total * place // steps


@pytest.mark.parametrize(
    ("process", "step", "kills"),
    [(process, step, count_kills(n)) for n, (process, step) in enumerate(STEPS)],
    ids=[f"{process}-{step}" for process, step in STEPS],
)
@pytest.mark.timeout(120 + 20 * KILLS_A_STEP)
async def test_process_killed_at_a_step_loses_and_doubles_nothing(
    world, payer, tally, process, step, kills
):
    told = tally("F1", f"{process} killed {step}")
    await payer.simulate({"behaviour": "seconds", "seconds": "0.3-1"})
    creations = []
    for _ in range(kills):
        world.restart_doomed(process, {"GATEWAY_FAILPOINTS": f"{step}:{HIT}"})
        for _ in range(TASKS_A_KILL):
            key = f"{step}-{secrets.token_hex(4)}"
            creations.append(asyncio.create_task(payer.create_surely(key, duration_seconds=3)))
        await wait_for(lambda: not world.is_alive(process), what=f"death at {step}", seconds=40)
    world.run.restart(process, {})
    async with told.trial(payer, count=kills):
        ids = await asyncio.gather(*creations)
        assert len(set(ids)) == kills * TASKS_A_KILL, "I9: two keys, one task"
        await check_invariants(payer, jobs="exactly one")
        for task_id in ids:
            body = payer.history.polled[task_id][-1]
            assert body["status"] == "completed", body
        await wait_for(lambda: is_closed(world, payer), what="all finalizers gone")
        await check_money(world, payer)
    told.check()


def test_batches_are_killed_at_each_of_their_steps() -> None:
    """In virtual time, and at some of them as processes (`test_batches`)."""
    assert set(test_batch_kills.STEPS) == set(BATCH_STEPS)


@pytest.mark.parametrize(("step", "path"), ELSEWHERE.items())
def test_steps_that_are_killed_elsewhere_are(step: str, path: str) -> None:
    assert step in (*OPERATOR_STEPS, *API_STEPS)
    assert f'"{step}"' in Path(ROOT, path).read_text()
