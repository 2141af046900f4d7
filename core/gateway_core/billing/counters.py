"""Rates and money in flight: counters that are derived, and rebuilt from the record when lost.

Fulfilled by `adapters.redis`. Amounts are micro-dollars.
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
    """An amount set aside for one task or call until it is settled or released.

    It counts in the budgets of its `subjects` too (`contract.limits.list_subjects`), as its charge
    will. `age` is told of one that stands: the seconds since it was taken, by the store's clock.
    """

    task: str
    micros: int
    subjects: tuple[str, ...] = ()
    age: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class Budget:
    """What one key or guardrail allows: micro-dollars in a window, and paid calls a minute."""

    subject: str
    limit: int | None = None
    window: Window | None = None
    requests_per_minute: int | None = None


@dataclass(frozen=True, slots=True)
class BudgetState:
    """Where a budget stands: charged in its window, held now, and when it next becomes less.

    `reset` is Unix seconds; None for a lifetime's.
    """

    budget: Budget
    used: int
    held: int
    reset: int | None


RateUse = Literal["count", "look", "skip"]
"""What a call has to do with the rates: it counts in them if it passes; it is refused whatever they
say, and only looked at; or it is past them already."""


FreeRate = Literal["management", "storage"]
"""Rates of calls that cost nothing: calls of Platform Management, and creates of Files, Uploads and
temporary files together (contract §12.1a)."""


@dataclass(frozen=True, slots=True)
class AdmissionCall:
    """One paid call at the door: counted in the rates, and holding money where `hold` is given.

    `funds` is all the account ever had paid in; None where the account is unlimited. `budgets` are
    those that must allow the call: their calls a minute unless `rate` is `skip`, their limits where
    it wants a hold.
    """

    account: str
    requests_per_minute: int
    hold: Hold | None
    funds: int | None
    rate: RateUse = "count"
    budgets: tuple[Budget, ...] = ()


@dataclass(frozen=True, slots=True)
class AdmissionAnswer:
    """What the counters say. `rate_exceeded`, `exceeded` and `underfunded` exclude one another.

    `rate` is the tightest of the account's and the budgets' (§12.4): the one with the least left,
    of equals the one that is free again last. `exceeded` is the first budget that the hold does
    not fit in, as it stands without it. `held` is whether the hold stands now, `stale` that money
    must be rebuilt and nothing was held, `busy` that another hold stands under the task's name, and
    nothing was changed. The rates are counted in any of these cases but `rate_exceeded`, `exceeded`
    and `stale`, whose `rate` is told as if it were. `retry_after` is 0 unless `rate_exceeded`.
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
    """An account's sums: charged ever, held now, and charged on the UTC day that was asked for."""

    charged: int
    held: int
    charged_today: int


@dataclass(frozen=True, slots=True)
class Ledger:
    """What the record says of an account's money; the base of a rebuild.

    `charged` is the sum of all days, those that `by_day` (`2026-11-21` -> micros) leaves out
    included; `holds` is task -> micros, `subjects` task -> what its hold counts under, and `spent`
    what each subject was charged. `journals` is process -> how far its journal is in all of these.
    """

    charged: int
    by_day: Mapping[str, int] = field(default_factory=dict)
    holds: Mapping[str, int] = field(default_factory=dict)
    subjects: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    spent: Mapping[str, Buckets] = field(default_factory=dict)
    journals: Mapping[str, int] = field(default_factory=dict)


CallState = Literal["held", "charged", "gone"]
"""Of a call that leaves no object: its hold stands, it was charged of late, or neither."""


@dataclass(frozen=True, slots=True)
class KeptCalls:
    """How calls stand, in their order, and how far their process's journal is in the sums.

    `counted` is the sequence up to which the last rebuild found the journal; 0 for nothing of it.
    """

    states: tuple[CallState, ...]
    counted: int


class Counters(Protocol):
    """Rates and holds, shared by all replicas. Every method raises CountersUnavailable.

    Amounts below 0 or above 2^53 - 1 are a ValueError. Rates go by the store's clock; windows of
    spending turn by the caller's, a minute being their finest part.
    """

    async def admit(self, call: AdmissionCall) -> AdmissionAnswer:
        """Counts and holds in one atomic round trip.

        A hold is keyed by its task: taking it again only has it begin anew in age, and taking it
        for a task that was charged in the last 10 minutes changes nothing. One that stands for
        another amount or under other subjects is another call's: the answer is `busy`. It is taken
        in the account and in all its subjects, or nowhere: in each budget charged + held + its
        amount must be within the limit. A rejected rate, the account's or a budget's, counts
        nowhere and holds nothing. The window is any trailing 60 s of the store's clock, and a call
        made `retry_after` seconds after a rejected one finds its slot free (contract §12).
        """
        ...

    async def count(self, account: str, rate: FreeRate, limit: int) -> int:
        """Counts one call of the account in a rate of `limit` calls in any trailing 60 s.

        Returns 0 where the call was counted, else the whole seconds after which a slot is free; a
        rejected call counts nowhere. One round trip; independent of the account's money.
        """
        ...

    async def note_used(self, account: str, used: Mapping[str, float]) -> None:
        """Notes when keys were last used: object name -> Unix seconds. The later one stays.

        Of an account the 10,000 used last are kept, until it has used none for two days.
        """
        ...

    async def read_used(
        self, account: str, keys: Sequence[str] | None = None
    ) -> Mapping[str, float]:
        """When those of `keys`, or all that are known, were last used; the unknown are left out."""
        ...

    async def hold(self, account: str, hold: Hold) -> bool:
        """Takes a hold whatever the balance, once per task; whether it is new. CountersStale.

        It is what the record says: a hold that stands for another amount or under other subjects
        becomes this one, in the account and in all pools, and keeps its age; it is not new.

        None is taken for a task that was charged in the last 10 minutes, by whom it ever was: of
        two owners of a task one may be late.
        """
        ...

    async def settle(self, account: str, task: str, charged: int, at: datetime) -> bool:
        """Ends the task's hold and charges, in one step; False where there was no hold.

        The charge counts in the account and in each subject of the hold, in the day, hour and
        minute of `at` (aware), which is when the task ended, whenever it is settled. Idempotent:
        the hold is the licence to charge, and it is used up. With 0 charged it is a release.
        CountersStale.
        """
        ...

    async def keep(self, account: str, process: str, calls: Sequence[str]) -> KeptCalls:
        """Has the holds of a process's calls, and the memory of their charges, begin anew in age.

        So neither is taken for one that nobody has any more. CountersStale.
        """
        ...

    async def read_budgets(self, account: str, budgets: Sequence[Budget]) -> list[BudgetState]:
        """Where each of `budgets` stands now, in their order; limits count for nothing here.

        A budget without a window is told as one for ever. CountersStale.
        """
        ...

    async def read_spending(self, account: str, day: str) -> Spending:
        """The sums now. CountersStale."""
        ...

    async def list_holds(self, account: str, min_age_seconds: float) -> list[Hold]:
        """Holds at least so old, for the sweeper; rebuilt ones as old as that. CountersStale."""
        ...

    async def mark_stale(self, account: str) -> None:
        """Has the account's money rebuilt before it is counted on again: a part may be missing."""
        ...

    async def list_accounts(self) -> list[str]:
        """Accounts that have money in the store, stale or not."""
        ...

    async def begin_rebuild(self, account: str) -> str | None:
        """A token to rebuild with, or None while another replica holds one (for at most 30 s).

        Begin before reading the record for the ledger: what is settled meanwhile is refused as
        stale, so that nothing falls between.
        """
        ...

    async def finish_rebuild(self, account: str, token: str, ledger: Ledger) -> bool:
        """Puts the ledger in place atomically; False where the token has lapsed or it is there."""
        ...

    async def abandon_rebuild(self, account: str, token: str) -> None:
        """Lets another replica begin at once, where the record could not be read."""
        ...
