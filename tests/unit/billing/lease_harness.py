"""Processes that admit calls of an account's keys at random, and limits that all of them keep."""

import asyncio
import heapq
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from gateway_core.accounts.guardrails import Guardrail, Policy, Rules, build_policy
from gateway_core.accounts.records import AccountRecord
from gateway_core.admission.rates import RateLimiter
from gateway_core.api.errors import Unavailable
from gateway_core.billing.counters import Budget, Hold
from gateway_core.billing.journal import JournalClosed
from gateway_core.billing.journal_store import JournalStore
from gateway_core.billing.ledger import read_ledger, rebuild_ledger
from gateway_core.billing.redis_counters import Counters
from gateway_core.billing.reservations import CallReservations
from tests.fakes.counters import FakeCounters
from tests.fakes.kubernetes import FakeKubernetes
from tests.unit.billing.journal_harness import FaultyStore, make_record

MOST_MICROS = 1000


@dataclass(frozen=True)
class Limits:
    """Of the account, of each of its two keys, and of the guardrail that both are in."""

    funds: int = 10**9
    account_calls: int = 10**6
    key: int | None = None
    key_calls: int | None = None
    guardrail: int | None = None


def make_account(limits: Limits, name: str = "demo") -> AccountRecord:
    return AccountRecord(
        name=name,
        id=1,
        owner_id=1,
        display_name="",
        owner_name="",
        owner_email="",
        paid_micros=limits.funds,
        bonus_micros=0,
        unlimited=False,
        suspended=False,
        requests_per_minute=limits.account_calls,
        storage_bytes=0,
    )


def make_policies(limits: Limits) -> list[Policy]:
    rules = Rules(limits.key, "daily" if limits.key else None, limits.key_calls)
    shared = Rules(limits.guardrail, "1h" if limits.guardrail else None)
    keys = ("key-a", "key-b")
    guardrail = Guardrail("grd-x", "demo", "X", frozenset(keys), shared)
    return [build_policy(key, rules, [guardrail]) for key in keys]


class SlowCounters(FakeCounters):
    """Counters that act `pause` seconds after each call, and answer as long after that."""

    pause = 0.0

    def __init__(self, now: float = 0.0) -> None:
        super().__init__(now)
        for name in ("admit", "hold", "keep", "lease", "settle_calls"):
            setattr(self, name, partial(self._call_slowly, getattr(self, name)))

    async def _call_slowly(self, method: Callable[..., Any], *args: Any) -> Any:
        await asyncio.sleep(self.pause)
        answer = await method(*args)
        await asyncio.sleep(self.pause)
        return answer


class Process:
    """One process's calls. Killed, it leaves what is in the counters and in the store."""

    def __init__(self, name: str, bench: "LeaseBench") -> None:
        self.bench = bench
        self.live = CallReservations(bench.counters, self.rebuild, bench.store, name)
        self.limiter = RateLimiter(bench.counters, self.rebuild, leases=self.live.leases)
        self.task = asyncio.create_task(self.live.run())
        self.calls: set[asyncio.Task[None]] = set()
        # key and reservation of calls under way
        self.running: dict[str, tuple[str, int]] = {}
        self.asking = 0

    async def rebuild(self, account: str) -> bool:
        bench = self.bench
        return await rebuild_ledger(bench.kube, JournalStore(bench.store), bench.counters, account)

    def start_call(self, *, seconds: float) -> None:
        task = asyncio.create_task(self._call(seconds))
        self.calls.add(task)
        task.add_done_callback(self.calls.discard)

    async def _call(self, seconds: float) -> None:
        bench = self.bench
        policy = bench.choice.choice(bench.policies)
        micros = bench.choice.randrange(MOST_MICROS)
        name = f"call-{self.live.journal.process}-{next(bench.numbers)}"
        hold = Hold(name, micros, policy.subjects)
        began = bench.now()
        if self.limiter.take(bench.account, policy, hold) is not None:
            bench.leased += 1
        else:
            self.asking += micros
            try:
                answer = await self.limiter.admit(bench.account, hold, policy.budgets)
            except Unavailable:
                return
            finally:
                self.asking -= micros
            if not answer.held:
                bench.refused += 1
                return
        bench.note_admission(self, policy, name, micros, began)
        self.live.begin(bench.account.name, hold)
        await asyncio.sleep(bench.choice.uniform(0, seconds))
        cost = bench.choice.choice([0, micros, bench.choice.randint(0, micros)])
        record = make_record(
            0,
            cost,
            call=name,
            account=bench.account.name,
            time=bench.wall(),
            key_name=policy.key_name,
            guardrail_names=policy.guardrail_names,
        )
        try:
            is_settled = self.live.end_leased(record)
        except JournalClosed:
            return
        del self.running[name]
        bench.spent[policy.key_name] += cost
        bench.ended += 1
        if not is_settled:
            await self.live.end(record)

    async def kill(self) -> None:
        leases = self.live.leases
        renewals = [lease.renewal for lease in (*leases._leases.values(), *leases._ended)]
        tasks = [self.task, *self.calls, *(task for task in renewals if task is not None)]
        for lease in (*leases._leases.values(), *leases._ended):
            if lease.timer is not None:
                lease.timer.cancel()
        leases._renew = lambda _lease: None  # type: ignore[method-assign]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.running.clear()
        # lost with the process: a rebuild does not count them
        journal = self.live.journal
        for record in (*journal._buffer, *journal._sending):
            self.bench.allowance += record.micros

    async def stop(self) -> None:
        """End as a server does: the calls first, then what they have left behind."""
        await asyncio.gather(*self.calls, return_exceptions=True)
        await self.live.close()
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task


class LeaseBench:
    """Processes on one store of counters. `allowance` is what limits may be exceeded by."""

    def __init__(
        self, counters: Counters | Any, limits: Limits, seed: int, *, account: str = "demo"
    ) -> None:
        self.kube, self.store = FakeKubernetes(), FaultyStore(seconds=0.01)
        self.counters = counters
        self.limits = limits
        self.account, self.policies = make_account(limits, account), make_policies(limits)
        self.choice = random.Random(seed)
        self.numbers, self._names = itertools.count(), itertools.count()
        self.processes: list[Process] = []
        self.spent = dict.fromkeys((policy.key_name for policy in self.policies), 0)
        self.admitted = 0
        self._recent: list[tuple[float, str]] = []
        self._recent_calls = Counter[str]()
        self.ended = self.leased = self.refused = self.allowance = 0
        self.checks_rates = True
        self.violations: list[str] = []

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> datetime:
        return datetime.now(UTC)

    def start(self) -> Process:
        self.processes.append(Process(f"p{next(self._names)}", self))
        return self.processes[-1]

    async def kill(self, process: Process) -> None:
        self.processes.remove(process)
        await process.kill()

    def note_admission(
        self, process: Process, policy: Policy, name: str, micros: int, began: float
    ) -> None:
        """Note an admitted call, and check that it was within all limits."""
        process.running[name] = policy.key_name, micros
        self.admitted += 1
        self._recent_calls[policy.key_name] += 1
        heapq.heappush(self._recent, (began, policy.key_name))
        exposed = dict(self.spent)
        for one in self.processes:
            for key, reserved in one.running.values():
                exposed[key] += reserved
        total, more = sum(exposed.values()), self.allowance
        self._check("funds", total, self.limits.funds + more)
        if self.limits.guardrail is not None:
            self._check("guardrail", total, self.limits.guardrail + more)
        if self.limits.key is not None:
            self._check("key", max(exposed.values()), self.limits.key + more)
        if self.checks_rates:
            self._check_rates()

    def _check_rates(self) -> None:
        # a call was admitted after it began: these are in the trailing minute for sure
        while self._recent[0][0] <= self.now() - 60:
            self._recent_calls[heapq.heappop(self._recent)[1]] -= 1
        self._check("calls", len(self._recent), self.limits.account_calls)
        if self.limits.key_calls is not None:
            self._check("calls of a key", max(self._recent_calls.values()), self.limits.key_calls)

    def _check(self, what: str, used: int, limit: int) -> None:
        if used > limit:
            # an exception would end the call alone
            self.violations.append(f"{what}: {used} of {limit}")

    def note_loss(self) -> None:
        """The counters are lost now: what was held may be spent a second time."""
        for process in self.processes:
            held = (group.need.micros + max(0, group.spare) for group in process.live._groups)
            self.allowance += sum(held) + process.asking
        self.checks_rates = False

    async def read_figures(self) -> tuple[int, int, dict[str, int]]:
        """Charged and held of the account, and charged to each key, by the counters."""
        name = self.account.name
        spending = await self.counters.read_spending(name, "2026-11-21")
        asked = [Budget(policy.subjects[0]) for policy in self.policies]
        states = await self.counters.read_budgets(name, asked)
        charged = {key: state.used for key, state in zip(self.spent, states, strict=True)}
        return spending.charged, spending.held, charged

    async def read_record(self) -> int:
        """What the account was charged according to the journal."""
        return (await read_ledger(self.kube, JournalStore(self.store), self.account.name)).charged
