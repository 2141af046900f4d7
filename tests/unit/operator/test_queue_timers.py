"""The queue's timers on the loop that the operator runs on."""

import asyncio

import uvloop

from gateway_operator.queue import WorkQueue


def test_work_due_at_once_does_not_keep_other_work_from_being_planned():
    """uvloop gives another kind of handle for a timer that is due within a millisecond."""
    worked = []

    async def scenario():
        done = asyncio.Event()

        async def work(name):
            worked.append(name)
            if len(worked) == 3:
                done.set()

        queue = WorkQueue(work)
        for name in ("first", "second", "third"):
            queue.add_after(name, 0.0)
        await asyncio.wait_for(done.wait(), 5)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())
    assert sorted(worked) == ["first", "second", "third"]
