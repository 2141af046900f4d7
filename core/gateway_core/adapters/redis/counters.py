"""`Counters` on Redis. Chosen by the processes' `compose` modules.

Keys, the braces keeping an account's together in a cluster: `gw:{<account>}:rate`, `:money`,
`:holds`, `:charged`, `:rebuild` and, during a rebuild, `:staged:<token>`. Their shapes are told at
the head of `lua/admit.lua`. Money counts only while `money` carries the `run_id` of the running
server and as many members as `holds` has: after a restart, a FLUSHALL, an eviction or the return of
an old snapshot it is stale until rebuilt.
"""

import asyncio
import secrets
from collections.abc import Iterator
from datetime import date, timedelta
from itertools import islice

import structlog

from gateway_core.adapters.redis.batches import CommandBatcher
from gateway_core.adapters.redis.link import Command, NoteRoundTrip, RedisLink, check_reply
from gateway_core.adapters.redis.scripts import (
    ABANDON_REBUILD,
    ADMIT,
    BEGIN_REBUILD,
    FINISH_REBUILD,
    HOLD,
    HOLDS,
    SCRIPTS,
    SETTLE,
    SPENDING,
    Argument,
    Script,
    ScriptCall,
)
from gateway_core.contract.errors import RateState
from gateway_core.contract.money import MAX_MICROS
from gateway_core.ports.counters import (
    AdmissionAnswer,
    AdmissionCall,
    CountersUnavailable,
    Hold,
    Ledger,
    Spending,
)

PREPARED = 2
"""Connections opened beforehand: one for the calls that go together, one for what goes alone."""
PREPARE_PAUSE_SECONDS = 0.2
REBUILD_SECONDS = 30
KEPT_DAYS = 9
CHARGED_SECONDS = 600
"""How long it is remembered that a task was charged: longer than any caller can be late."""

CHUNK = 1000
"""Holds in one HSET, and keys looked at in one SCAN."""

_log = structlog.get_logger(__name__)

_HELD, _UNDERFUNDED, _STALE = 1, 2, 3


class RedisCounters:
    """The counters in the Redis at `url`; for one event loop. See `ports.counters.Counters`."""

    def __init__(
        self, url: str, *, max_connections: int = 16, note: NoteRoundTrip | None = None
    ) -> None:
        self._link = RedisLink(url, max_connections=max_connections, note=note)
        self._batcher = CommandBatcher(self._link)

    async def prepare(self, seconds: float) -> bool:
        """Connects and loads the scripts, so that no first call has to wait for either.

        Tries for so many seconds; whether it succeeded. It need not: calls do both by themselves.
        """
        commands: list[Command] = [(b"SCRIPT", b"LOAD", script.source) for script in SCRIPTS]
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            try:
                await asyncio.gather(*(self._link.run(commands) for _ in range(PREPARED)))
            except CountersUnavailable as error:
                if asyncio.get_running_loop().time() >= deadline:
                    _log.warning("the counters could not be prepared", error=str(error))
                    return False
                await asyncio.sleep(PREPARE_PAUSE_SECONDS)
            else:
                return True

    async def close(self) -> None:
        """Closes all connections."""
        await self._link.close()

    async def admit(self, call: AdmissionCall) -> AdmissionAnswer:
        """One EVALSHA, together with those of other callers; see the port."""
        hold = call.hold
        key = f"gw:{{{call.account}}}:"
        remaining, reset, wait, outcome = await self._batcher.call(
            ScriptCall(
                ADMIT,
                (key + "rate", key + "money", key + "holds", key + "charged"),
                (
                    call.requests_per_minute,
                    hold.task if hold else b"",
                    _check_micros(hold.micros) if hold else 0,
                    b"" if call.funds is None else call.funds,
                    int(call.counted),
                ),
            )
        )
        return AdmissionAnswer(
            rate=RateState(call.requests_per_minute, remaining, reset),
            rate_exceeded=wait > 0,
            retry_after=wait,
            underfunded=outcome == _UNDERFUNDED,
            held=outcome == _HELD,
            stale=outcome == _STALE,
        )

    async def hold(self, account: str, hold: Hold) -> bool:
        """See the port."""
        call = _call_on_money(HOLD, account, hold.task, _check_micros(hold.micros))
        return bool(await self._batcher.call(call))

    async def settle(self, account: str, task: str, charged: int, day: str) -> bool:
        """See the port. Forgets sums of days more than 9 before `day`."""
        oldest = date.fromisoformat(day) - timedelta(days=KEPT_DAYS)
        call = _call_on_money(
            SETTLE,
            account,
            task,
            _check_micros(charged),
            day,
            oldest.isoformat(),
            CHARGED_SECONDS * 1_000_000,
        )
        return bool(await self._batcher.call(call))

    async def read_spending(self, account: str, day: str) -> Spending:
        """See the port."""
        charged, held, today = await self._batcher.call(_call_on_money(SPENDING, account, day))
        return Spending(charged=charged, held=held, charged_today=today)

    async def list_holds(self, account: str, min_age_seconds: float) -> list[Hold]:
        """See the port. A rebuilt hold is as old as the rebuild."""
        call = _call_on_money(HOLDS, account, int(min_age_seconds * 1_000_000))
        flat = check_reply((await self._link.run([call]))[0])
        holds = zip(flat[::3], flat[1::3], flat[2::3], strict=True)
        return [Hold(task.decode(), micros, age=age / 1_000_000) for task, micros, age in holds]

    async def list_accounts(self) -> list[str]:
        """See the port. Accounts whose money is stale are among them."""
        accounts: set[str] = set()
        cursor: bytes = b"0"
        while True:
            scan: Command = (b"SCAN", cursor, b"MATCH", b"gw:{*}:money", b"COUNT", CHUNK)
            cursor, keys = check_reply((await self._link.run([scan]))[0])
            accounts.update(key.decode()[4 : -len("}:money")] for key in keys)
            if cursor == b"0":
                return sorted(accounts)

    async def begin_rebuild(self, account: str) -> str | None:
        """See the port."""
        call = ScriptCall(
            BEGIN_REBUILD,
            (f"gw:{{{account}}}:rebuild",),
            (secrets.token_hex(16), REBUILD_SECONDS),
        )
        token = await self._batcher.call(call)
        return None if token is None else token.decode()

    async def finish_rebuild(self, account: str, token: str, ledger: Ledger) -> bool:
        """See the port. Holds are staged beside those in use and renamed in the last step."""
        key = f"gw:{{{account}}}:"
        staged = f"{key}staged:{token}"
        finish = ScriptCall(
            FINISH_REBUILD,
            (key + "money", key + "holds", key + "rebuild", staged),
            (
                token,
                _check_micros(ledger.charged),
                sum(_check_micros(micros) for micros in ledger.holds.values()),
                len(ledger.holds),
                *(
                    part
                    for day, micros in ledger.by_day.items()
                    for part in (day, _check_micros(micros))
                ),
            ),
        )
        now = await self._read_clock()
        commands: list[Command] = [(b"DEL", staged)]
        commands += _stage_holds(staged, ledger, now)
        commands += [(b"EXPIRE", staged, REBUILD_SECONDS), finish]
        replies = await self._link.run(commands)
        return bool([check_reply(reply) for reply in replies][-1])

    async def abandon_rebuild(self, account: str, token: str) -> None:
        """See the port."""
        key = f"gw:{{{account}}}:rebuild"
        await self._batcher.call(ScriptCall(ABANDON_REBUILD, (key,), (token,)))

    async def _read_clock(self) -> int:
        """The server's time in microseconds."""
        seconds, micros = check_reply((await self._link.run([(b"TIME",)]))[0])
        return int(seconds) * 1_000_000 + int(micros)


def _call_on_money(script: Script, account: str, *arguments: Argument) -> ScriptCall:
    key = f"gw:{{{account}}}:"
    return ScriptCall(script, (key + "money", key + "holds", key + "charged"), arguments)


def _stage_holds(staged: str, ledger: Ledger, now: int) -> Iterator[Command]:
    holds = iter(ledger.holds.items())
    while chunk := list(islice(holds, CHUNK)):
        yield (
            b"HSET",
            staged,
            *(part for task, micros in chunk for part in (task, f"{micros}:{now}")),
        )


def _check_micros(micros: int) -> int:
    """`micros`, if Lua can count it exactly and it adds to no balance by being below zero."""
    if not 0 <= micros <= MAX_MICROS:
        raise ValueError(f"{micros} is no amount of micro-dollars")
    return micros
