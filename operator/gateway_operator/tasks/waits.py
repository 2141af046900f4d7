"""What tasks wait for, in their conditions and in Events.

A wait is written once. The status that ends it is the next that any step writes; a job that runs
gets one write for that.
"""

import time
from dataclasses import dataclass, field
from datetime import datetime

from gateway_core.api.conditions import WAIT_PREFIX, Reason
from gateway_core.api.task import GatewayTask
from gateway_core.tasks.lifecycle import (
    describe_wait,
    is_terminal,
    read_progress,
    record_resumption,
    record_wait,
)
from gateway_operator.context import Context
from gateway_operator.tasks.cache import TaskWriter

QUIET_SECONDS = 600.0
"""Between two writes of what a provider answers: its words may differ at each call."""
PATIENCE_SECONDS = 10.0
"""Age of a task from which a wait for the gateway's own stores is shown: most are shorter."""


@dataclass(eq=False)
class Waits:
    """Shows waits of tasks."""

    context: Context
    writer: TaskWriter
    _shown: dict[str, float] = field(default_factory=dict, init=False)

    def forget(self, name: str) -> None:
        """Drop what is known of `name`'s waits."""
        self._shown.pop(name, None)

    async def show(
        self,
        task: GatewayTask,
        reason: Reason,
        text: str,
        *,
        is_answer: bool = False,
        until: datetime | None = None,
    ) -> None:
        """Show that an open task waits for what `text` names. Superseded.

        Also writes a status that was held back. `is_answer`: the text is a provider's. `until`: the
        end of the wait, if that is before the task's deadline.
        """
        name = task.metadata.name
        if is_terminal(task):
            return
        is_own = reason in (Reason.WAITING_FOR_LEDGER, Reason.WAITING_FOR_STORE)
        if is_own and self.context.age(task) < PATIENCE_SECONDS:
            return
        change = record_wait(task, reason, text, self.context.now(), until)
        message = describe_wait(task, text, until)
        self.context.events.warn(task.source, reason=reason, message=message)
        quiet = time.monotonic() - self._shown.get(name, float("-inf"))
        if is_answer and read_progress(task)[0] == reason and quiet < QUIET_SECONDS:
            change = {}
        if change or self.writer.cache.is_unwritten(name):
            await self.writer.commit(task, change)
            self._shown[name] = time.monotonic()

    async def end(self, task: GatewayTask) -> None:
        """Show that the task's job runs, if its status shows a wait. Superseded."""
        self.forget(task.metadata.name)
        if read_progress(task)[0].startswith(WAIT_PREFIX):
            await self.writer.commit(task, record_resumption(task, self.context.now()))
