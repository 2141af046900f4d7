"""`Counters` in memory, with a clock to set; verified by the tests of the real one."""

import math
import secrets
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from gateway_core.api.errors import RateState
from gateway_core.api.money import MAX_MICROS
from gateway_core.billing.counters import (
    FAR,
    LEAST_SLOTS,
    LEAST_SPARES,
    AdmissionAnswer,
    AdmissionCall,
    Budget,
    BudgetState,
    CallCharge,
    CallState,
    FreeRate,
    Hold,
    KeptCalls,
    LeaseAnswer,
    LeaseCall,
    Ledger,
    Spending,
)
from gateway_core.billing.windows import Buckets, find_reset, sum_window
from gateway_core.redis.link import CountersStale
from tests.fakes.redis import FakeRedis

WINDOW = 60.0
REBUILD_SECONDS = 30.0
KEPT_DAYS = 9
CHARGED_SECONDS = 600.0


@dataclass
class _Pot:
    """What one subject was charged, by bucket."""

    minutes: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    hours: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    days: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    total: int = 0

    def add(self, at: datetime, micros: int) -> None:
        seconds = int(at.timestamp())
        self.minutes[seconds // 60] += micros
        self.hours[seconds // 3600] += micros
        self.days[seconds // 86400] += micros
        self.total += micros

    def fill(self, spent: Buckets) -> None:
        self.minutes.update(spent.minutes)
        self.hours.update(spent.hours)
        self.days.update(spent.days)
        self.total = spent.total

    @property
    def buckets(self) -> Buckets:
        return Buckets(self.minutes, self.hours, self.days, self.total)


@dataclass
class _Money:
    charged: int
    by_day: dict[str, int]
    holds: dict[str, tuple[Hold, float]] = field(default_factory=dict)
    charged_at: dict[str, float] = field(default_factory=dict)
    spent: dict[str, _Pot] = field(default_factory=lambda: defaultdict(_Pot))
    journals: dict[str, int] = field(default_factory=dict)
    stale: bool = False

    @property
    def held(self) -> int:
        return sum(hold.micros for hold, _ in self.holds.values())

    def held_of(self, subject: str) -> int:
        return sum(hold.micros for hold, _ in self.holds.values() if subject in hold.subjects)


class FakeCounters(FakeRedis):
    """Counters of one process."""

    def __init__(self, now: float = 1_800_000_000.25) -> None:
        super().__init__(now)
        self._rates: dict[tuple[str, str], list[float]] = {}
        self._money: dict[str, _Money] = {}
        self._tokens: dict[str, tuple[str, float]] = {}
        self._used: dict[str, dict[str, float]] = {}

    def lose(self) -> None:
        self._rates.clear()
        self._money.clear()
        self._tokens.clear()
        self._used.clear()

    async def admit(self, call: AdmissionCall) -> AdmissionAnswer:
        self._check_away()
        if call.hold is not None:
            _check_micros(call.hold.micros)
        rejected, rate = self._count(call)
        if rejected:
            return rejected
        if call.hold is None:
            return AdmissionAnswer(rate)
        money = self._money.get(call.account)
        if money is None or money.stale:
            self._uncount(call)
            return AdmissionAnswer(rate, stale=True)
        if self._was_charged(money, call.hold.task):
            return AdmissionAnswer(rate, held=True)
        standing, _ = money.holds.get(call.hold.task, (None, 0))
        if standing not in (None, call.hold):
            return AdmissionAnswer(rate, busy=True)
        if standing is None:
            for budget in call.budgets:
                state = self._state_of(money, budget)
                spent = state.used + state.held
                if budget.limit is not None and spent + call.hold.micros > budget.limit:
                    self._uncount(call)
                    return AdmissionAnswer(rate, exceeded=state)
            spent = money.held + money.charged
            if call.funds is not None and spent + call.hold.micros > call.funds:
                return AdmissionAnswer(rate, underfunded=True, left=call.funds - spent)
        money.holds[call.hold.task] = (call.hold, self.now)
        return AdmissionAnswer(rate, held=True)

    def _count(self, call: AdmissionCall) -> tuple[AdmissionAnswer | None, RateState]:
        """The rejection, if it is one, and the tightest rate."""
        limits = _list_limits(call, () if call.rate == "skip" else call.budgets)
        logs = self._read_rates(call.account, limits)
        full = [s for s, limit in limits.items() if len(logs[s]) >= limit]
        if call.rate != "skip" and full:
            free, limit = max(
                ((logs[s][len(logs[s]) - limits[s]] + WINDOW, limits[s]) for s in full),
                key=lambda pair: pair[0],
            )
            state = RateState(limit, 0, math.ceil(free))
            wait = max(1, math.ceil(free - self.now))
            return AdmissionAnswer(state, rate_exceeded=True, retry_after=wait), state
        if call.rate == "count":
            for log in logs.values():
                log.append(self.now)
        return None, self._find_tightest(limits, logs)

    def _read_rates(self, account: str, limits: Mapping[str, int]) -> dict[str, list[float]]:
        """The calls of the last minute by subject, as lists that may be changed."""
        for subject in limits:
            log = self._rates.get((account, subject), [])
            self._rates[account, subject] = [at for at in log if at > self.now - WINDOW]
        return {subject: self._rates[account, subject] for subject in limits}

    def _find_tightest(
        self, limits: Mapping[str, int], logs: Mapping[str, list[float]]
    ) -> RateState:
        states = [
            RateState(
                limit,
                max(0, limit - len(logs[subject])),
                math.ceil((logs[subject] or [self.now])[0] + WINDOW),
            )
            for subject, limit in limits.items()
        ]
        return min(states, key=lambda state: (state.remaining, -state.reset))

    def _uncount(self, call: AdmissionCall) -> None:
        if call.rate == "count":
            for subject in ("", *(b.subject for b in call.budgets if b.requests_per_minute)):
                self._rates[call.account, subject].pop()

    async def count(self, account: str, rate: FreeRate, limit: int) -> int:
        self._check_away()
        log = self._read_rates(account, {rate: limit})[rate]
        if len(log) >= limit:
            return max(1, math.ceil(log[len(log) - limit] + WINDOW - self.now))
        log.append(self.now)
        return 0

    async def note_used(self, account: str, used: Mapping[str, float]) -> None:
        self._check_away()
        known = self._used.setdefault(account, {})
        for key, at in used.items():
            known[key] = max(at, known.get(key, 0.0))

    async def read_used(
        self, account: str, keys: Sequence[str] | None = None
    ) -> Mapping[str, float]:
        self._check_away()
        known = self._used.get(account, {})
        return {key: at for key, at in known.items() if keys is None or key in keys}

    async def hold(self, account: str, hold: Hold) -> bool:
        _check_micros(hold.micros)
        money = self._find_money(account)
        if self._was_charged(money, hold.task):
            return False
        standing, since = money.holds.get(hold.task, (None, self.now))
        money.holds[hold.task] = (hold, since)
        return standing is None

    async def settle(self, account: str, task: str, charged: int, at: datetime) -> bool:
        _check_micros(charged)
        return await self.settle_calls(account, task, "", (CallCharge(at, charged),))

    async def settle_calls(
        self, account: str, task: str, process: str, charges: Sequence[CallCharge]
    ) -> bool:
        return self._end_hold(self._find_money(account), task, process, charges)

    def _end_hold(
        self, money: _Money, task: str, process: str, charges: Sequence[CallCharge]
    ) -> bool:
        hold, _ = money.holds.pop(task, (None, 0))
        if hold is None:
            return False
        counted = money.journals.get(process, 0)
        for charge in charges:
            if charge.micros and not 0 < charge.sequence <= counted:
                self._charge(money, hold, charge)
                money.charged_at[task] = self.now
        return True

    def _charge(self, money: _Money, hold: Hold, charge: CallCharge) -> None:
        day = charge.at.astimezone(UTC).date()
        oldest = (day - timedelta(days=KEPT_DAYS)).isoformat()
        money.charged += charge.micros
        money.by_day = {d: micros for d, micros in money.by_day.items() if d >= oldest}
        money.by_day[str(day)] = money.by_day.get(str(day), 0) + charge.micros
        for subject in hold.subjects:
            money.spent[subject].add(charge.at, charge.micros)

    async def lease(self, call: LeaseCall) -> LeaseAnswer:
        money = self._find_money(call.account)
        ended: CallState = "gone"
        if call.ended is not None:
            if self._end_hold(money, call.ended, call.process, call.charges):
                ended = "held"
            elif self._was_charged(money, call.ended):
                ended = "charged"
        limits = _list_limits(call, call.budgets)
        logs = self._read_rates(call.account, limits)
        for log in logs.values():
            for _ in range(call.unused):
                if call.stamp / 1_000_000 in log:
                    log.remove(call.stamp / 1_000_000)
        slots = spare = 0
        stamp = max([self.now + call.seconds, *(log[-1] for log in logs.values() if log)])
        stamp = round(stamp * 1_000_000) / 1_000_000
        if call.hold is not None:
            far = min((limits[s] - len(log)) // FAR for s, log in logs.items())
            if far >= LEAST_SLOTS and call.slots:
                left = [call.spare * FAR]
                if call.funds is not None:
                    left.append(call.funds - money.held - money.charged - call.hold.micros)
                for budget in call.budgets:
                    if budget.limit is not None:
                        state = self._state_of(money, budget)
                        used = state.used + state.held + call.hold.micros
                        left.append(budget.limit - used)
                spare = min(left) // FAR
                slots = min(call.slots, far)
                if spare * LEAST_SPARES < call.spare:
                    slots = spare = 0
            if call.hold.micros + spare:
                hold = replace(call.hold, micros=call.hold.micros + spare)
                money.holds[hold.task] = (hold, self.now)
            for log in logs.values():
                log += [stamp] * slots
        rate = self._find_tightest(limits, logs)
        return LeaseAnswer(ended, spare, slots, round(stamp * 1_000_000), rate)

    async def keep(self, account: str, process: str, calls: Sequence[str]) -> KeptCalls:
        money = self._find_money(account)
        states: list[CallState] = []
        for call in calls:
            if call in money.holds:
                money.holds[call] = (money.holds[call][0], self.now)
                states.append("held")
            elif self._was_charged(money, call):
                money.charged_at[call] = self.now
                states.append("charged")
            else:
                states.append("gone")
        return KeptCalls(tuple(states), money.journals.get(process, 0))

    async def read_budgets(self, account: str, budgets: Sequence[Budget]) -> list[BudgetState]:
        money = self._find_money(account)
        return [self._state_of(money, budget) for budget in budgets]

    def _state_of(self, money: _Money, budget: Budget) -> BudgetState:
        now = datetime.fromtimestamp(self.now, UTC)
        spent = money.spent[budget.subject].buckets if budget.subject in money.spent else Buckets()
        window = budget.window or "lifetime"
        reset = find_reset(spent, window, now)
        return BudgetState(
            budget,
            used=sum_window(spent, window, now),
            held=money.held_of(budget.subject),
            reset=None if reset is None else math.ceil(reset.timestamp()),
        )

    async def read_spending(self, account: str, day: str) -> Spending:
        money = self._find_money(account)
        return Spending(money.charged, money.held, money.by_day.get(day, 0))

    async def list_holds(self, account: str, min_age_seconds: float) -> list[Hold]:
        holds = self._find_money(account).holds
        listed = [replace(hold, age=self.now - since) for hold, since in holds.values()]
        return [hold for hold in listed if hold.age >= min_age_seconds]

    async def mark_stale(self, account: str) -> None:
        self._check_away()
        if account in self._money:
            self._money[account].stale = True

    async def list_accounts(self) -> list[str]:
        self._check_away()
        return sorted(self._money)

    async def forget_account(self, account: str) -> None:
        self._check_away()
        for kept in (self._money, self._tokens, self._used):
            kept.pop(account, None)
        for key in [key for key in self._rates if key[0] == account]:
            del self._rates[key]

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
        for spent in ledger.spent.values():
            for parts in (spent.minutes, spent.hours, spent.days, {0: spent.total}):
                for micros in parts.values():
                    _check_micros(micros)
        self._check_away()
        known, until = self._tokens.get(account, ("", 0.0))
        if known != token or until <= self.now:
            return False
        del self._tokens[account]
        before = self._money.get(account)
        if before is not None and not before.stale:
            return False
        money = _Money(ledger.charged, dict(ledger.by_day))
        known_charges = before.charged_at.items() if before is not None else ()
        money.charged_at.update((t, at) for t, at in known_charges if not t.startswith("call-"))
        money.journals.update(ledger.journals)
        for task, micros in ledger.holds.items():
            money.holds[task] = (Hold(task, micros, ledger.subjects.get(task, ())), self.now)
        for subject, spent in ledger.spent.items():
            money.spent[subject].fill(spent)
        self._money[account] = money
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
        if money is None or money.stale:
            raise CountersStale(account)
        return money


def _list_limits(call: AdmissionCall | LeaseCall, budgets: Iterable[Budget]) -> dict[str, int]:
    """Calls a minute by subject; that of the account is empty."""
    return {"": call.requests_per_minute} | {
        budget.subject: budget.requests_per_minute
        for budget in budgets
        if budget.requests_per_minute is not None
    }


def _check_micros(micros: int) -> None:
    if not 0 <= micros <= MAX_MICROS:
        raise ValueError(f"{micros} is no amount of micro-dollars")
