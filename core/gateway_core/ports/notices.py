"""Where the API hands on notices of providers: the operator replica that works the task.

Fulfilled by `adapters.operatorlink`.
"""

from typing import Protocol

from gateway_core.contract.notices import Notice


class NoticeUndelivered(Exception):
    """No replica has taken the notice; it may be sent again."""


class NoticeSink(Protocol):
    """Takes notices. May be told of one any number of times, and of tasks that have ended."""

    async def deliver(self, notice: Notice) -> None:
        """Hands on a notice, within seconds. NoticeUndelivered."""
        ...
