"""Who may send when: a receiver that hangs holds up its own callbacks and nobody else's.

Each attempt passes three gates. The first is of its account and host; one whose last attempt hung
lets a single one through until it answers again, at a gate that the account's other hosts do not
use. The second is of the account, so that a host of its own for each task gains it nothing; the
third is of the process. What waits at one holds nothing of those that come after it.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

PER_HOST = 8
PER_SLOW_HOST = 1
PER_ACCOUNT = 128
PER_ACCOUNT_SLOW = 16
IN_ALL = 1024
MOST_IDLE_HOSTS = 10_000
"""Hosts remembered as slow while nothing is sent to them."""


class Gate:
    """Lets `limit` through at once, in the order they came; the limit may change meanwhile."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.inside = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def idle(self) -> bool:
        """Whether nobody is inside or waiting."""
        return not self.inside and not self._waiting

    async def enter(self) -> None:
        """Returns once there is room."""
        if self.inside < self.limit and not self._waiting:
            self.inside += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                with suppress(ValueError):
                    self._waiting.remove(turn)
            else:
                self.leave()
            raise

    def leave(self) -> None:
        """Makes room for the next."""
        self.inside -= 1
        self._let_in()

    def set_limit(self, limit: int) -> None:
        """Changes how many may be inside; those that are stay."""
        self.limit = limit
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self.inside < self.limit:
            turn = self._waiting.popleft()
            if not turn.done():
                self.inside += 1
                turn.set_result(None)


@dataclass(slots=True)
class Lane:
    """The way to one host for one account; `is_slow` is for whoever uses it to set."""

    gate: Gate
    is_slow: bool = False


@dataclass(slots=True)
class _Account:
    quick: Gate = field(default_factory=lambda: Gate(PER_ACCOUNT))
    slow: Gate = field(default_factory=lambda: Gate(PER_ACCOUNT_SLOW))


class Lanes:
    """All lanes of a process."""

    def __init__(self) -> None:
        self._lanes: OrderedDict[tuple[str, str], Lane] = OrderedDict()
        self._accounts: dict[str, _Account] = {}
        self._all = Gate(IN_ALL)

    @asynccontextmanager
    async def take(self, account: str, host: str) -> AsyncIterator[Lane]:
        """A place in the lane, once it is there; the lane itself, to say whether it is slow."""
        lane = self._lanes.setdefault((account, host), Lane(Gate(PER_HOST)))
        try:
            async with _inside(lane.gate):
                gates = self._accounts.setdefault(account, _Account())
                # as it is now: the ones before may have found the host slow meanwhile
                second = gates.slow if lane.is_slow else gates.quick
                async with _inside(second), _inside(self._all):
                    try:
                        yield lane
                    finally:
                        lane.gate.set_limit(PER_SLOW_HOST if lane.is_slow else PER_HOST)
        finally:
            self._tidy(account, host, lane)

    def _tidy(self, account: str, host: str, lane: Lane) -> None:
        """Forgets what nobody uses, except which hosts are slow."""
        gates = self._accounts.get(account)
        if gates is not None and gates.quick.idle and gates.slow.idle:
            self._accounts.pop(account)
        if not lane.gate.idle:
            return
        if not lane.is_slow:
            self._lanes.pop((account, host), None)
            return
        self._lanes.move_to_end((account, host))
        if len(self._lanes) > MOST_IDLE_HOSTS:
            oldest = next(iter(self._lanes))
            if self._lanes[oldest].gate.idle:
                self._lanes.pop(oldest)


@asynccontextmanager
async def _inside(gate: Gate) -> AsyncIterator[None]:
    await gate.enter()
    try:
        yield
    finally:
        gate.leave()
