"""`Counters` in memory, with a clock to set; verified by the port's tests beside the real one."""

import math
import secrets
from dataclasses import dataclass, field
from datetime import date, timedelta

from gateway_core.contract.errors import RateState
from gateway_core.contract.money import MAX_MICROS
from gateway_core.ports.counters import (
    AdmissionAnswer,
    AdmissionCall,
    CountersStale,
    CountersUnavailable,
    Hold,
    Ledger,
    Spending,
)

WINDOW = 60.0
REBUILD_SECONDS = 30.0
KEPT_DAYS = 9
CHARGED_SECONDS = 600.0


@dataclass
class _Money:
    charged: int
    by_day: dict[str, int]
    holds: dict[str, tuple[int, float]] = field(default_factory=dict)
    charged_at: dict[str, float] = field(default_factory=dict)

    @property
    def held(self) -> int:
        return sum(micros for micros, _ in self.holds.values())


class FakeCounters:
    """Counters of one process. `now` is the store's clock, `away` makes it unreachable."""

    def __init__(self, now: float = 1_800_000_000.25) -> None:
        self.now = now
        self.away = False
        self._rates: dict[str, list[float]] = {}
        self._money: dict[str, _Money] = {}
        self._tokens: dict[str, tuple[str, float]] = {}

    def lose(self) -> None:
        """Forgets all, as a restart does."""
        self._rates.clear()
        self._money.clear()
        self._tokens.clear()

    async def admit(self, call: AdmissionCall) -> AdmissionAnswer:
        self._check_away()
        if call.hold is not None:
            _check_micros(call.hold.micros)
        limit = call.requests_per_minute
        log = [at for at in self._rates.get(call.account, []) if at > self.now - WINDOW]
        self._rates[call.account] = log
        if call.counted and len(log) >= limit:
            free = log[len(log) - limit] + WINDOW
            return AdmissionAnswer(
                rate=RateState(limit, 0, math.ceil(free)),
                rate_exceeded=True,
                retry_after=max(1, math.ceil(free - self.now)),
            )
        if call.counted:
            log.append(self.now)
        oldest = log[0] if log else self.now
        rate = RateState(limit, max(0, limit - len(log)), math.ceil(oldest + WINDOW))
        if call.hold is None:
            return AdmissionAnswer(rate)
        money = self._money.get(call.account)
        if money is None:
            return AdmissionAnswer(rate, stale=True)
        if call.hold.task not in money.holds and not self._was_charged(money, call.hold.task):
            wanted = money.held + money.charged + call.hold.micros
            if call.funds is not None and wanted > call.funds:
                return AdmissionAnswer(rate, underfunded=True)
            money.holds[call.hold.task] = (call.hold.micros, self.now)
        return AdmissionAnswer(rate, held=True)

    async def hold(self, account: str, hold: Hold) -> bool:
        _check_micros(hold.micros)
        money = self._find_money(account)
        if hold.task in money.holds or self._was_charged(money, hold.task):
            return False
        money.holds[hold.task] = (hold.micros, self.now)
        return True

    async def settle(self, account: str, task: str, charged: int, day: str) -> bool:
        _check_micros(charged)
        oldest = (date.fromisoformat(day) - timedelta(days=KEPT_DAYS)).isoformat()
        money = self._find_money(account)
        if money.holds.pop(task, None) is None:
            return False
        money.charged += charged
        if day not in money.by_day:
            money.by_day = {d: micros for d, micros in money.by_day.items() if d >= oldest}
        money.by_day[day] = money.by_day.get(day, 0) + charged
        if charged:
            money.charged_at[task] = self.now
        return True

    async def read_spending(self, account: str, day: str) -> Spending:
        money = self._find_money(account)
        return Spending(money.charged, money.held, money.by_day.get(day, 0))

    async def list_holds(self, account: str, min_age_seconds: float) -> list[Hold]:
        holds = self._find_money(account).holds
        listed = [
            Hold(task, micros, age=self.now - since) for task, (micros, since) in holds.items()
        ]
        return [hold for hold in listed if hold.age >= min_age_seconds]

    async def list_accounts(self) -> list[str]:
        self._check_away()
        return sorted(self._money)

    async def begin_rebuild(self, account: str) -> str | None:
        self._check_away()
        _, until = self._tokens.get(account, ("", 0.0))
        if until > self.now:
            return None
        token = secrets.token_hex(16)
        self._tokens[account] = (token, self.now + REBUILD_SECONDS)
        return token

    async def finish_rebuild(self, account: str, token: str, ledger: Ledger) -> bool:
        for micros in (ledger.charged, *ledger.by_day.values(), *ledger.holds.values()):
            _check_micros(micros)
        self._check_away()
        known, until = self._tokens.get(account, ("", 0.0))
        if known != token or until <= self.now:
            return False
        del self._tokens[account]
        if account in self._money:
            return False
        holds = {task: (micros, self.now) for task, micros in ledger.holds.items()}
        self._money[account] = _Money(ledger.charged, dict(ledger.by_day), holds)
        return True

    async def abandon_rebuild(self, account: str, token: str) -> None:
        self._check_away()
        if self._tokens.get(account, ("", 0.0))[0] == token:
            del self._tokens[account]

    def _was_charged(self, money: _Money, task: str) -> bool:
        return money.charged_at.get(task, float("-inf")) > self.now - CHARGED_SECONDS

    def _find_money(self, account: str) -> _Money:
        self._check_away()
        money = self._money.get(account)
        if money is None:
            raise CountersStale(account)
        return money

    def _check_away(self) -> None:
        if self.away:
            raise CountersUnavailable("away")


def _check_micros(micros: int) -> None:
    if not 0 <= micros <= MAX_MICROS:
        raise ValueError(f"{micros} is no amount of micro-dollars")
