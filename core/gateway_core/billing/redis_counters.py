"""Counters in Redis: rates and money in flight, derived, and rebuilt from the objects when lost.

An account's keys begin with `gw:{<namespace>/<account>}:`; `lua/account.lua` describes them. Money
is valid only while `money` has the `run_id` of the running server and the member counts of `holds`
and `pools`, and a subject's buckets only while their total is that of its pool: after a restart, a
FLUSHALL, an eviction or the restore of an old snapshot it is stale until rebuilt.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice

import structlog

from gateway_core.api.errors import RateState
from gateway_core.billing.counters import (
    CALL_STATES,
    AdmissionAnswer,
    AdmissionCall,
    Budget,
    BudgetState,
    CallCharge,
    FreeRate,
    Hold,
    KeptCalls,
    LeaseAnswer,
    LeaseCall,
    Ledger,
    RateUse,
    Spending,
    check_micros,
    describe_budgets,
    describe_charge,
    describe_lease,
    describe_oldest,
    describe_window,
    join_subjects,
    read_lease,
    read_state,
)
from gateway_core.billing.windows import Buckets
from gateway_core.kube.clock import CLOCK
from gateway_core.redis.batches import CommandBatcher
from gateway_core.redis.link import (
    CHUNK,
    REBUILD_SECONDS,
    Command,
    CountersUnavailable,
    NoteRoundTrip,
    RedisAdapter,
    stage_hash,
)
from gateway_core.redis.options import RedisOptions
from gateway_core.redis.scripts import (
    ABANDON_REBUILD,
    ADMIT,
    BEGIN_REBUILD,
    BUDGETS,
    COUNT,
    FINISH_REBUILD,
    HOLD,
    HOLDS,
    KEEP,
    LEASE,
    MARK_STALE,
    SCRIPTS,
    SETTLE,
    SPENDING,
    Argument,
    Script,
    ScriptCall,
)

PREPARED = 2
"""Connections opened beforehand: one for batched calls, one for calls of their own."""
PREPARE_PAUSE_SECONDS = 0.2
CHARGED_SECONDS = 600
"""How long a task's charge is remembered: longer than any caller can be late."""
MOST_USED = 10_000
USED_SECONDS = 2 * 86_400

_log = structlog.get_logger(__name__)

_RATE_USES: Mapping[RateUse, int] = {"skip": 0, "count": 1, "look": 2}
_HELD, _UNDERFUNDED, _STALE, _EXCEEDED, _BUSY = 1, 2, 3, 4, 5


class Counters(RedisAdapter):
    """Rates and holds, shared by all replicas. Every method raises CountersUnavailable.

    Amounts below 0 or above 2^53 - 1 raise ValueError. Rates follow the store's clock, windows of
    spending `clock`, in Unix seconds, to the minute. Methods marked (stale) raise CountersStale
    while the account's money has to be rebuilt.
    """

    def __init__(
        self,
        server: RedisOptions | str,
        *,
        namespace: str = "default",
        max_connections: int = 16,
        clock: Callable[[], float] = CLOCK.time,
        note: NoteRoundTrip | None = None,
    ) -> None:
        super().__init__(server, namespace=namespace, max_connections=max_connections, note=note)
        self._clock = clock
        self._batcher = CommandBatcher(self._run_all)

    async def prepare(self, seconds: float) -> bool:
        """Connect and load the scripts beforehand, within `seconds`; whether it succeeded.

        Optional: calls do both by themselves.
        """
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            try:
                # concurrently, so that each run opens a connection of its own
                await asyncio.gather(*(self._load_scripts() for _ in range(PREPARED)))
            except CountersUnavailable as error:
                if asyncio.get_running_loop().time() >= deadline:
                    _log.warning("the counters could not be prepared", error=str(error))
                    return False
                await asyncio.sleep(PREPARE_PAUSE_SECONDS)
            else:
                return True

    async def _load_scripts(self) -> None:
        pipeline = self._open_pipeline()
        for script in SCRIPTS:
            pipeline.script_load(script)
        await self._ask_all(pipeline)

    async def admit(self, call: AdmissionCall) -> AdmissionAnswer:
        """Count and hold in one atomic round trip.

        A hold is keyed by its task: taking it again only resets its age, and for a task charged in
        the last 10 minutes it changes nothing. A hold with another amount or other subjects belongs
        to another call: `busy`. It is taken in the account and all its subjects, or nowhere: in
        each budget charged + held + its amount must be within the limit. The rate's window is any
        trailing 60 s; a call `retry_after` seconds after a rejected one is counted (contract §12).
        """
        hold, now = call.hold, self._clock()
        limit, remaining, reset, wait, outcome, *figures = await self._batcher.call(
            self._name_call(
                ADMIT,
                call.account,
                call.requests_per_minute,
                hold.task if hold else b"",
                check_micros(hold.micros) if hold else 0,
                b"" if call.funds is None else call.funds,
                _RATE_USES[call.rate],
                join_subjects(hold.subjects) if hold else b"",
                *describe_budgets(call.budgets, now),
            )
        )
        state = None
        if outcome == _EXCEEDED:
            place, *used = figures
            state = read_state(call.budgets[place], now, *used)
        return AdmissionAnswer(
            rate=RateState(limit, remaining, reset),
            rate_exceeded=wait > 0,
            retry_after=wait,
            underfunded=outcome == _UNDERFUNDED,
            left=figures[0] if outcome == _UNDERFUNDED else 0,
            held=outcome == _HELD,
            stale=outcome == _STALE,
            busy=outcome == _BUSY,
            exceeded=state,
        )

    async def count(self, account: str, rate: FreeRate, limit: int) -> int:
        """Count one call in a rate of `limit` calls in any trailing 60 s, in one round trip.

        0 where the call was counted, else the whole seconds until a call is; a rejected call counts
        nowhere. Independent of the account's money.
        """
        wait: int = await self._batcher.call(self._name_call(COUNT, account, rate, limit))
        return wait

    async def note_used(self, account: str, used: Mapping[str, float]) -> None:
        """Note when keys were last used: object name -> Unix seconds. The later time stays.

        The 10,000 keys used last are kept, until the account has used none for two days.
        """
        name, entries = self._name_keys(account) + "used", iter(used.items())
        while chunk := list(islice(entries, CHUNK)):
            pipeline = self._open_pipeline()
            # GT keeps the later time, whatever the order in which replicas report
            pipeline.zadd(name, dict(chunk), gt=True)
            pipeline.zremrangebyrank(name, 0, -1 - MOST_USED)
            pipeline.expire(name, USED_SECONDS)
            await self._ask_all(pipeline)

    async def read_used(
        self, account: str, keys: Sequence[str] | None = None
    ) -> Mapping[str, float]:
        """When `keys`, or all known keys, were last used; unknown keys are left out."""
        name = self._name_keys(account) + "used"
        if keys is not None:
            if not keys:
                return {}
            scores = await self._ask(self._redis.zmscore(name, list(keys)))
            return {key: at for key, at in zip(keys, scores, strict=True) if at is not None}
        used = await self._ask(self._redis.zrange(name, 0, -1, withscores=True))
        return {key.decode(): at for key, at in used}

    async def hold(self, account: str, hold: Hold) -> bool:
        """Take a hold whatever the balance, once per task; whether it is new. (stale)

        The caller has read it from an object: an existing hold with another amount or other
        subjects is replaced in the account and all pools, keeps its age, and is not new. For a task
        charged in the last 10 minutes none is taken: of two owners of a task one may be late.
        """
        micros, subjects = check_micros(hold.micros), join_subjects(hold.subjects)
        return bool(
            await self._batcher.call(self._name_call(HOLD, account, hold.task, micros, subjects))
        )

    async def settle(self, account: str, task: str, charged: int, at: datetime) -> bool:
        """End the task's hold and charge, atomically; False where there is no hold. (stale)

        The charge counts in the account and in each subject of the hold, in the day, hour and
        minute of `at` (aware), when the task ended. Idempotent: the hold is the licence to charge,
        and is used up. With 0 charged it is a release.
        """
        return await self.settle_calls(account, task, "", (CallCharge(at, charged),))

    async def settle_calls(
        self, account: str, task: str, process: str, charges: Sequence[CallCharge]
    ) -> bool:
        """End the hold of calls and charge them, as `settle` does for one task. (stale)

        Charges whose records the last rebuild has counted are left out.
        """
        head = self._describe_charging(process)
        parts = (part for charge in charges for part in describe_charge(charge))
        call = self._name_call(SETTLE, account, *head, task, *parts)
        return bool(await self._batcher.call(call))

    async def lease(self, call: LeaseCall) -> LeaseAnswer:
        """End a group's hold, and take the next one's, atomically. (stale)

        After CountersUnavailable either may have happened, as one.
        """
        budgets = describe_budgets(call.budgets, self._clock())
        reply = await self._batcher.call(
            self._name_call(
                LEASE,
                call.account,
                *self._describe_charging(call.process),
                *describe_lease(call),
                len(call.budgets),
                *budgets,
                *(part for charge in call.charges for part in describe_charge(charge)),
            )
        )
        return read_lease(reply)

    def _describe_charging(self, process: str) -> tuple[Argument, ...]:
        return process, CHARGED_SECONDS * 1_000_000, *describe_oldest(self._clock())

    async def keep(self, account: str, process: str, calls: Sequence[str]) -> KeptCalls:
        """Reset the age of calls' holds, and of the memory of their charges. (stale)

        Otherwise the sweeper releases a hold that no object accounts for.
        """
        call = self._name_call(KEEP, account, process, CHARGED_SECONDS * 1_000_000, *calls)
        counted, *states = await self._batcher.call(call)
        return KeptCalls(tuple(CALL_STATES[state] for state in states), counted)

    async def read_spending(self, account: str, day: str) -> Spending:
        """Return the account's sums. (stale)"""
        charged, held, today = await self._batcher.call(self._name_call(SPENDING, account, day))
        return Spending(charged=charged, held=held, charged_today=today)

    async def read_budgets(self, account: str, budgets: Sequence[Budget]) -> list[BudgetState]:
        """States of `budgets` in their order; one without a window is read for a lifetime. (stale)

        Their limits do not matter here.
        """
        now = self._clock()
        asked = ((budget.subject, *describe_window(budget, now)) for budget in budgets)
        call = self._name_call(BUDGETS, account, *(part for one in asked for part in one))
        replies = await self._batcher.call(call)
        return [read_state(b, now, *figures) for b, figures in zip(budgets, replies, strict=True)]

    async def list_holds(self, account: str, min_age_seconds: float) -> list[Hold]:
        """Holds of at least that age; a rebuilt hold is as old as the rebuild. (stale)"""
        key = f"{self._name_keys(account)}money"
        flat = await self._run(HOLDS, (key,), int(min_age_seconds * 1_000_000))
        holds = zip(flat[::4], flat[1::4], flat[2::4], flat[3::4], strict=True)
        return [
            Hold(task.decode(), micros, tuple(subjects.decode().split()), age / 1_000_000)
            for task, micros, age, subjects in holds
        ]

    async def mark_stale(self, account: str) -> None:
        """Have the account's money rebuilt before it is used again: a part may be missing."""
        await self._batcher.call(self._name_call(MARK_STALE, account))

    async def list_accounts(self) -> list[str]:
        """Accounts with money in the store, stale or not."""
        accounts: set[str] = set()
        async for keys in self._scan(f"{self._head}*}}:money"):
            accounts.update(key.decode()[len(self._head) : -len("}:money")] for key in keys)
        return sorted(accounts)

    async def forget_account(self, account: str) -> None:
        """Remove all keys of an account: its money, rates, stored bytes and last uses."""
        await self._remove(self._name_keys(account))

    async def begin_rebuild(self, account: str) -> str | None:
        """Return a token to rebuild with; None while another replica has one (for at most 30 s).

        Begin before the objects are read for the ledger: settlements meanwhile are refused as
        stale, so that none is lost between.
        """
        call = self._name_call(BEGIN_REBUILD, account, secrets.token_hex(8), REBUILD_SECONDS)
        token = await self._batcher.call(call)
        return None if token is None else token.decode()

    async def finish_rebuild(self, account: str, token: str, ledger: Ledger) -> bool:
        """Put the ledger in place atomically; False if the token expired or money is there."""
        # staged under keys of its own, then renamed by one script: readers see all of it or nothing
        pools = _sum_pools(ledger)
        finish = self._name_call(
            FINISH_REBUILD,
            account,
            token,
            check_micros(ledger.charged),
            sum(check_micros(micros) for micros in ledger.holds.values()),
            len(ledger.holds),
            len(pools),
            *(p for d, micros in ledger.by_day.items() for p in (f"day:{d}", check_micros(micros))),
            *(
                p
                for name, sequence in ledger.journals.items()
                for p in (f"journal:{name}", sequence)
            ),
        )
        now = await self._read_clock()
        await self._stage(_stage(self._name_keys(account), token, ledger, pools, now))
        return bool(await self._ask(self._execute(finish)))

    async def abandon_rebuild(self, account: str, token: str) -> None:
        """Let another replica begin at once, where the objects could not be read."""
        await self._batcher.call(self._name_call(ABANDON_REBUILD, account, token))

    def _name_keys(self, account: str) -> str:
        """Prefix of the account's keys."""
        return f"{self._head}{account}}}:"

    def _name_call(self, script: Script, account: str, *arguments: Argument) -> ScriptCall:
        return ScriptCall(script, (f"{self._head}{account}}}:money",), arguments)


def _sum_pools(ledger: Ledger) -> dict[str, int]:
    """Return the fields of `pools`: micros charged, and held, of each subject."""
    pools: Counter[str] = Counter()
    for task, micros in ledger.holds.items():
        for subject in ledger.subjects.get(task, ()):
            pools[f"held {subject}"] += micros
    for subject, spent in ledger.spent.items():
        pools[subject] += check_micros(spent.total)
    return {name: micros for name, micros in pools.items() if micros}


def _stage(
    prefix: str, token: str, ledger: Ledger, pools: dict[str, int], now: int
) -> Iterator[Command]:
    holds = (
        (task, f"{micros}:{now}{join_subjects(ledger.subjects.get(task, ()))}")
        for task, micros in ledger.holds.items()
    )
    yield from stage_hash(f"{prefix}staged:{token}", holds)
    yield from stage_hash(f"{prefix}pools:{token}", pools.items())
    for subject, spent in ledger.spent.items():
        if spent.total:
            yield from stage_hash(f"{prefix}spent:{token}:{subject}", _list_buckets(spent))


def _list_buckets(spent: Buckets) -> Iterator[tuple[str, int]]:
    yield "total", spent.total
    for letter, parts in (("m", spent.minutes), ("h", spent.hours), ("d", spent.days)):
        for number, micros in parts.items():
            yield f"{letter}{number}", check_micros(micros)
