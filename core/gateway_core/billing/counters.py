"""Port of the counters: rates and money in flight, derived, and rebuilt from the objects when lost.

Amounts are micro-dollars.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

from gateway_core.api.errors import RateState
from gateway_core.api.limits import Window
from gateway_core.billing.windows import Buckets


@dataclass(frozen=True, slots=True)
class Hold:
    """An amount reserved for one task or call until it is settled or released.

    It also counts in the budgets of its `subjects` (`api.limits.list_subjects`), as the charge
    will. `age` is the seconds since a stored hold was taken, by the store's clock.
    """

    task: str
    micros: int
    subjects: tuple[str, ...] = ()
    age: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of one key or guardrail: micro-dollars in a window, and paid calls a minute."""

    subject: str
    limit: int | None = None
    window: Window | None = None
    requests_per_minute: int | None = None


@dataclass(frozen=True, slots=True)
class BudgetState:
    """State of a budget: charged in its window, held now, and when the window's sum decreases.

    `reset` is Unix seconds; None for a lifetime.
    """

    budget: Budget
    used: int
    held: int
    reset: int | None


RateUse = Literal["count", "look", "skip"]
"""How a call uses the rates: `count` it if it passes; `look`, since it is refused anyway; `skip`,
since it has passed them already."""

FreeRate = Literal["management", "storage"]
"""Rates of calls that cost nothing: Platform Management, and creates of Files, Uploads and
temporary files together (contract §12.1a)."""


@dataclass(frozen=True, slots=True)
class AdmissionCall:
    """One paid call to admit: counted in the rates, and with a `hold` reserving money.

    `funds` is everything ever paid into the account; None for an unlimited account. Each of
    `budgets` must allow the call: its calls a minute unless `rate` is `skip`, its limit if there is
    a hold.
    """

    account: str
    requests_per_minute: int
    hold: Hold | None
    funds: int | None
    rate: RateUse = "count"
    budgets: tuple[Budget, ...] = ()


@dataclass(frozen=True, slots=True)
class AdmissionAnswer:
    """Result of an admission. At most one of the refusals is set, and `held` is False then.

    `rate_exceeded`: a rate refused the call, for `retry_after` seconds. `exceeded`: the first
    budget that has no room for the hold, without it. `underfunded`: the balance has none. `busy`:
    another hold has the task's name. `stale`: the account's money must be rebuilt first.
    A call that is refused by `rate_exceeded`, `exceeded` or `stale` counts in no rate, and `rate`
    is as if it did. `rate` is the tightest of the account's and the budgets' (§12.4): the one with
    the least left, among equals the one that is free again last.
    """

    rate: RateState
    rate_exceeded: bool = False
    retry_after: int = 0
    underfunded: bool = False
    held: bool = False
    stale: bool = False
    busy: bool = False
    exceeded: BudgetState | None = None


@dataclass(frozen=True, slots=True)
class Spending:
    """An account's sums: charged in total, held now, and charged on the UTC day asked for."""

    charged: int
    held: int
    charged_today: int


@dataclass(frozen=True, slots=True)
class Ledger:
    """An account's money according to the objects; the input of a rebuild.

    `charged` is the sum of all days, including those that `by_day` (`2026-11-21` -> micros) leaves
    out. `holds` maps tasks to micros, `subjects` tasks to the subjects of their holds, `spent`
    subjects to their charges, and `journals` processes to the last sequence of their journal that
    is in all of these.
    """

    charged: int
    by_day: Mapping[str, int] = field(default_factory=dict)
    holds: Mapping[str, int] = field(default_factory=dict)
    subjects: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    spent: Mapping[str, Buckets] = field(default_factory=dict)
    journals: Mapping[str, int] = field(default_factory=dict)


CallState = Literal["held", "charged", "gone"]
"""State of an object-less call: its hold exists, it was charged recently, or neither."""


@dataclass(frozen=True, slots=True)
class KeptCalls:
    """States of calls in the order asked for, and the counted part of their process's journal.

    `counted` is the sequence up to which the last rebuild read the journal; 0 for nothing.
    """

    states: tuple[CallState, ...]
    counted: int


class Counters(Protocol):
    """Rates and holds, shared by all replicas. Every method raises CountersUnavailable.

    Amounts below 0 or above 2^53 - 1 raise ValueError. Rates follow the store's clock, windows of
    spending the caller's, to the minute. Methods marked (stale) raise CountersStale while the
    account's money has to be rebuilt.
    """

    async def admit(self, call: AdmissionCall) -> AdmissionAnswer:
        """Count and hold in one atomic round trip.

        A hold is keyed by its task: taking it again only resets its age, and for a task charged in
        the last 10 minutes it changes nothing. A hold with another amount or other subjects belongs
        to another call: `busy`. It is taken in the account and all its subjects, or nowhere: in
        each budget charged + held + its amount must be within the limit. The rate's window is any
        trailing 60 s; a call `retry_after` seconds after a rejected one is counted (contract §12).
        """
        ...

    async def count(self, account: str, rate: FreeRate, limit: int) -> int:
        """Count one call in a rate of `limit` calls in any trailing 60 s, in one round trip.

        0 where the call was counted, else the whole seconds until a call is; a rejected call counts
        nowhere. Independent of the account's money.
        """
        ...

    async def note_used(self, account: str, used: Mapping[str, float]) -> None:
        """Note when keys were last used: object name -> Unix seconds. The later time stays.

        The 10,000 keys used last are kept, until the account has used none for two days.
        """
        ...

    async def read_used(
        self, account: str, keys: Sequence[str] | None = None
    ) -> Mapping[str, float]:
        """When `keys`, or all known keys, were last used; unknown keys are left out."""
        ...

    async def hold(self, account: str, hold: Hold) -> bool:
        """Take a hold whatever the balance, once per task; whether it is new. (stale)

        The caller has read it from an object: an existing hold with another amount or other
        subjects is replaced in the account and all pools, keeps its age, and is not new. For a task
        charged in the last 10 minutes none is taken: of two owners of a task one may be late.
        """
        ...

    async def settle(self, account: str, task: str, charged: int, at: datetime) -> bool:
        """End the task's hold and charge, atomically; False where there is no hold. (stale)

        The charge counts in the account and in each subject of the hold, in the day, hour and
        minute of `at` (aware), when the task ended. Idempotent: the hold is the licence to charge,
        and is used up. With 0 charged it is a release.
        """
        ...

    async def keep(self, account: str, process: str, calls: Sequence[str]) -> KeptCalls:
        """Reset the age of calls' holds, and of the memory of their charges. (stale)

        Otherwise the sweeper releases a hold that no object accounts for.
        """
        ...

    async def read_budgets(self, account: str, budgets: Sequence[Budget]) -> list[BudgetState]:
        """States of `budgets` in their order; one without a window is read for a lifetime. (stale)

        Their limits do not matter here.
        """
        ...

    async def read_spending(self, account: str, day: str) -> Spending:
        """The account's sums. (stale)"""
        ...

    async def list_holds(self, account: str, min_age_seconds: float) -> list[Hold]:
        """Holds of at least that age; a rebuilt hold is as old as the rebuild. (stale)"""
        ...

    async def mark_stale(self, account: str) -> None:
        """Have the account's money rebuilt before it is used again: a part may be missing."""
        ...

    async def list_accounts(self) -> list[str]:
        """Accounts with money in the store, stale or not."""
        ...

    async def begin_rebuild(self, account: str) -> str | None:
        """A token to rebuild with; None while another replica has one (for at most 30 s).

        Begin before the objects are read for the ledger: settlements meanwhile are refused as
        stale, so that none is lost between.
        """
        ...

    async def finish_rebuild(self, account: str, token: str, ledger: Ledger) -> bool:
        """Put the ledger in place atomically; False if the token expired or money is there."""
        ...

    async def abandon_rebuild(self, account: str, token: str) -> None:
        """Let another replica begin at once, where the objects could not be read."""
        ...
