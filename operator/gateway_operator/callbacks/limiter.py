"""Who may send when: a receiver that hangs holds up its own callbacks and nobody else's.

Each attempt passes three gates. The first is of its account and host; one whose last attempt hung
lets a single one through until it answers again, one that answers late a few. The second is of the
account, so that a host of its own for each task gains it nothing; there the slow ones have a gate
that the account's other hosts do not use. The third is of the process, where the accounts that wait
take turns. What waits at one gate holds nothing of those that come after it.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

PER_HOST = 8
PER_LATE_HOST = 4
PER_SLOW_HOST = 1
PER_ACCOUNT = 128
PER_ACCOUNT_SLOW = 16
IN_ALL = 1024
MOST_IDLE_HOSTS = 10_000
"""Hosts remembered as slow while nothing is sent to them."""


class Gate:
    """Lets `limit` through at once; the limit may change meanwhile.

    Those who wait have lines, by `line`, which take turns; within one it is first come, first in.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.inside = 0
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def idle(self) -> bool:
        """Whether nobody is inside or waiting."""
        return not self.inside and not self._lines

    async def enter(self, line: str = "") -> None:
        """Returns once there is room."""
        if self.inside < self.limit and not self._lines:
            self.inside += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._lines.setdefault(line, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._go_away(line, turn)
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
        while self._lines and self.inside < self.limit:
            line, waiting = self._lines.popitem(last=False)
            turn = waiting.popleft()
            if waiting:
                self._lines[line] = waiting
            if not turn.done():
                self.inside += 1
                turn.set_result(None)

    def _go_away(self, line: str, turn: asyncio.Future[None]) -> None:
        waiting = self._lines.get(line)
        if waiting is None:
            return
        with suppress(ValueError):
            waiting.remove(turn)
        if not waiting:
            self._lines.pop(line)


@dataclass(slots=True)
class Lane:
    """The way to one host for one account.

    For whoever uses it to set: whether an attempt takes long, and whether it is answered then.
    """

    gate: Gate
    is_slow: bool = False
    answers: bool = False

    @property
    def limit(self) -> int:
        """How many attempts may be under way."""
        if not self.is_slow:
            return PER_HOST
        return PER_LATE_HOST if self.answers else PER_SLOW_HOST


@dataclass(slots=True)
class _Account:
    quick: Gate = field(default_factory=lambda: Gate(PER_ACCOUNT))
    slow: Gate = field(default_factory=lambda: Gate(PER_ACCOUNT_SLOW))


class Lanes:
    """All lanes of a process."""

    def __init__(self) -> None:
        self._lanes: dict[tuple[str, str], Lane] = {}
        self._idle: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._accounts: dict[str, _Account] = {}
        self._all = Gate(IN_ALL)
        self._taken = 0

    @property
    def running(self) -> int:
        """How many attempts are under way."""
        return self._all.inside

    @property
    def waiting(self) -> int:
        """How many stand at one of the gates."""
        return self._taken - self._all.inside

    @asynccontextmanager
    async def take(self, account: str, host: str) -> AsyncIterator[Lane]:
        """A place in the lane, once it is there; the lane itself, to say whether it is slow."""
        lane = self._lanes.setdefault((account, host), Lane(Gate(PER_HOST)))
        self._idle.pop((account, host), None)
        self._taken += 1
        try:
            async with _inside(lane.gate):
                gates = self._accounts.setdefault(account, _Account())
                # as it is now: the ones before may have found the host slow meanwhile
                second = gates.slow if lane.is_slow else gates.quick
                async with _inside(second), _inside(self._all, account):
                    try:
                        yield lane
                    finally:
                        lane.gate.set_limit(lane.limit)
        finally:
            self._taken -= 1
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
        self._idle[account, host] = None
        if len(self._idle) > MOST_IDLE_HOSTS:
            self._lanes.pop(self._idle.popitem(last=False)[0])


@asynccontextmanager
async def _inside(gate: Gate, line: str = "") -> AsyncIterator[None]:
    await gate.enter(line)
    try:
        yield
    finally:
        gate.leave()
