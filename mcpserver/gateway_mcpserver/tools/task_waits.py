"""Waiting for the task of a call: progress, heartbeats, the deadline, and what ends a wait early.

A task's record comes from the table that the watch keeps; the Kubernetes API is asked where the
watch has been silent, and once where the task has left the table (contract §10.8).
"""

import asyncio
from typing import Any

from gateway_core.api.errors import GatewayError, Unavailable
from gateway_core.api.ids import id_to_name
from gateway_core.kube.informer import Cache
from gateway_core.kube.read_through import QUIET_SECONDS
from gateway_core.tasks.finder import TaskFinder, TaskRecord
from gateway_mcpserver.metrics import McpMetrics
from gateway_mcpserver.protocol.streaming import HEARTBEAT_SECONDS, Reply
from gateway_mcpserver.tools.creation import CreatedTask, PendingTask, describe_created
from gateway_mcpserver.waiting import FindRefusal, Wait, Waits

RETRY_SECONDS = 3.0
"""Time after which a task that could not be read is read again."""


class Progress:
    """Progress notifications of one call, in milliseconds that only rise."""

    def __init__(self, token: str | int, pending: PendingTask) -> None:
        self._token = token
        self._task_id = pending.task_id
        self._total = round(pending.seconds * 1000)
        self._last = 0

    def describe(self, elapsed: float) -> dict[str, Any]:
        """Return the params of the next one."""
        self._last = max(self._last + 1, round(elapsed * 1000))
        return {
            "progressToken": self._token,
            "progress": self._last,
            "total": self._total,
            "message": f"task {self._task_id}: processing",
        }


class TaskWaiter:
    """Waits for tasks."""

    def __init__(
        self, waits: Waits, finder: TaskFinder, tasks: Cache[TaskRecord], metrics: McpMetrics
    ) -> None:
        self.waits = waits
        self._finder = finder
        self._tasks = tasks
        self._metrics = metrics

    async def run(
        self,
        pending: PendingTask,
        wait: Wait,
        reply: Reply,
        token: str | int | None,
        find_refusal: FindRefusal,
    ) -> CreatedTask:
        """Return the output of the call, at the latest after `pending.seconds`.

        Raises NotFound; the refusal of a credential that was revoked, within one heartbeat.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        progress = None if token is None else Progress(token, pending)
        next_progress = began
        next_check = began + HEARTBEAT_SECONDS
        next_look = began
        deadline = began + pending.seconds
        outcome = "completed"
        refusal: GatewayError | None = None
        try:
            while True:
                if clock() >= next_look:
                    record, next_look = await self._look(pending, clock())
                    if record is not None and record.terminal is not None:
                        return describe_created(pending, record)
                if wait.stop is not None:
                    outcome = wait.stop.value
                    return describe_created(pending, None)
                now = clock()
                if now >= deadline:
                    outcome = "deadline"
                    return describe_created(pending, None, wait_deadline_reached=True)
                if now >= next_check:
                    refusal = await find_refusal()
                    if refusal is not None:
                        break
                    next_check = now + HEARTBEAT_SECONDS
                if progress is not None and now >= next_progress:
                    await reply.notify("notifications/progress", progress.describe(now - began))
                    next_progress = now + pending.interval
                elif now >= reply.next_beat:
                    await reply.beat()
                wakes = [deadline, reply.next_beat, next_look, next_check]
                if progress is not None:
                    wakes.append(next_progress)
                if await wait.sleep(min(wakes) - clock()):
                    next_look = clock()
            outcome = "revoked"
        except GatewayError as error:
            outcome = error.code
            raise
        except BaseException:
            outcome = "cut_short"
            raise
        finally:
            self._metrics.count_wait(outcome)
        assert refusal is not None
        raise refusal

    async def find_ended(self, pending: PendingTask) -> TaskRecord | None:
        """Return the task if it has ended and can be read. NotFound."""
        record, _ = await self._look(pending, 0.0)
        return record

    async def _look(self, pending: PendingTask, now: float) -> tuple[TaskRecord | None, float]:
        """Return the task as it is known, and when to look again if the watch does not say."""
        if self._is_running(pending.task_id):
            return None, now + QUIET_SECONDS
        try:
            record = await self._finder.find(pending.account, pending.task_id)
        except Unavailable:
            return None, now + RETRY_SECONDS
        return record, now + RETRY_SECONDS

    def _is_running(self, task_id: str) -> bool:
        """Return whether the watch, which is alive, says that the task has not ended."""
        known = self._tasks.get(id_to_name(task_id))
        return (
            known is not None and known.terminal is None and self._tasks.staleness <= QUIET_SECONDS
        )
