"""Who has been told of late that his rate is used up: his calls are not worth planning.

For `admission.entrance`. It only tells what to ask first; the counters decide on every call.
"""

import time
from collections.abc import Callable, Sequence

from gateway_core.ports.counters import Budget

MOST_SECONDS = 60.0
MOST_PAYERS = 10_000

Payer = tuple[str, tuple[Budget, ...]]


class FullRates:
    """Accounts, with the budgets that were asked for, whose rates are probably used up now."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: dict[Payer, float] = {}

    def __len__(self) -> int:
        return len(self._until)

    def note(self, account: str, budgets: Sequence[Budget], seconds: float) -> None:
        """A call was refused by its rate, for so many seconds as far as is known."""
        payer = account, tuple(budgets)
        # the newest comes last, so that the oldest makes room
        self._until.pop(payer, None)
        if len(self._until) >= MOST_PAYERS:
            del self._until[next(iter(self._until))]
        self._until[payer] = self._clock() + min(seconds, MOST_SECONDS)

    def forget(self, account: str, budgets: Sequence[Budget]) -> None:
        """There is room again."""
        self._until.pop((account, tuple(budgets)), None)

    def is_noted(self, account: str, budgets: Sequence[Budget]) -> bool:
        """Whether a call would probably be refused."""
        if not self._until:
            return False
        payer = account, tuple(budgets)
        until = self._until.get(payer)
        if until is None:
            return False
        if until > self._clock():
            return True
        del self._until[payer]
        return False
