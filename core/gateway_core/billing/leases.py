"""Leases of rate and money: calls of a busy payer are admitted in memory, far from every limit.

A payer is a key, with its account and its policy. Its lease is a group of calls (`call_groups`)
whose hold has a spare part, and slots: calls that the rates have counted in advance. Both are
granted by the counters, far from every limit only, and end at a time of this process's clock that
is before the slots leave the rates. A call takes a slot and reserves its amount from the spare
part; when it has ended, the rest of its reservation is spare again, and its cost stays held until
the lease is renewed: one step then charges the ended calls, gives unused slots back and takes the
hold of the next group, to which calls under way move. So what is held or charged is never less than
what admitted calls may cost, and a rate never counts fewer calls than were admitted.

A payer without many calls has no lease: it asks exactly, for each call.
"""

import asyncio
import itertools
import time
from collections.abc import Callable
from contextlib import nullcontext

from gateway_core.api.errors import RateState
from gateway_core.api.ids import CALL_PREFIX
from gateway_core.api.money import MAX_MICROS
from gateway_core.billing.call_groups import CallGroup, CallGroups
from gateway_core.billing.counters import Hold, LeaseAnswer, LeaseCall
from gateway_core.billing.payers import Account, Policy
from gateway_core.billing.redis_counters import Counters
from gateway_core.concurrency import Supervisor
from gateway_core.redis.link import CountersStale, CountersUnavailable

RENEW_SECONDS = 0.2
LIFE_SECONDS = 0.4
"""How long calls are admitted from a lease; counted from before it is asked for."""
IDLE_SECONDS = 0.02
"""A lease ends so long after its last call."""
HURRY_SECONDS = 0.02
"""Between two renewals of a lease that is used up."""
BUSY_CALLS = 4
BUSY_SECONDS = 0.1
"""A payer gets a lease after so many calls within that time."""
DENIED_SECONDS = 1.0
"""How long a payer asks for no lease after one was not granted."""
FEWEST_SLOTS = 16
MOST_SLOTS = 4096
MOST_LEASES = 256
MOST_OF_ACCOUNT = 8
MOST_RECENT = 10_000


class Lease:
    """The lease of one payer. `until` is by the loop's clock.

    An ended lease admits no call any more, and lasts until its last call has ended. `taken` and
    `missed` are the calls that were admitted from it since the last renewal, and that found it used
    up; `largest` is about the largest reservation of late.
    """

    __slots__ = (
        "account",
        "began",
        "calls",
        "ended",
        "group",
        "is_watched",
        "largest",
        "lowest",
        "missed",
        "policy",
        "rate",
        "renewal",
        "slots",
        "stamp",
        "taken",
        "timer",
        "top",
        "until",
        "watch",
    )

    def __init__(
        self, account: Account, policy: Policy, group: CallGroup, watch: Callable[["Lease"], None]
    ) -> None:
        self.account, self.policy, self.group = account, policy, group
        self.watch = watch
        self.slots, self.stamp, self.until = 0, 0, 0.0
        self.rate = RateState(0, 0, 0)
        self.began = 0.0
        self.calls = self.taken = self.missed = 0
        # the spare part at its highest and lowest since the last renewal
        self.top = self.lowest = self.largest = 0
        self.ended = self.is_watched = False
        self.renewal: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None

    def follow(self, account: Account, policy: Policy) -> bool:
        """Return whether account and policy equal those that the lease was granted for."""
        if account != self.account or policy != self.policy:
            return False
        self.account, self.policy = account, policy
        return True

    @property
    def is_renewable(self) -> bool:
        """Whether there is anything to charge, to return or to end."""
        group = self.group
        return not group.running or bool(self.slots or group.spare or group.records)

    def note_end(self) -> None:
        """As `call_groups.Owner`."""
        if self.timer is None or (not self.group.running and not self.is_watched):
            self.watch(self)

    def void(self) -> None:
        """As `call_groups.Owner`."""
        self.slots = self.group.spare = 0

    def grant(self, answer: LeaseAnswer, until: float) -> None:
        """Take over what was granted, beside what calls that ended meanwhile have left."""
        self.group.spare += answer.spare
        self.top = self.lowest = self.group.spare
        self.slots, self.stamp, self.until = answer.slots, answer.stamp, until
        self.rate = answer.rate
        self.taken = self.missed = 0
        self.largest -= self.largest >> 2

    def size(self, now: float) -> tuple[int, int]:
        """Return the slots and the micro-dollars that are wanted until the next renewal."""
        calls = 2 * (self.taken + self.missed)
        seconds = max(now - self.began, HURRY_SECONDS)
        slots = FEWEST_SLOTS + int(calls * RENEW_SECONDS / seconds)
        spare = 2 * (self.top - self.lowest) + FEWEST_SLOTS * self.largest
        return min(MOST_SLOTS, slots), min(MAX_MICROS, spare)


class Leases:
    """The leases of this process; for one event loop.

    `look_again` is called with an account whose groups are to be reconciled with the counters.
    """

    def __init__(
        self,
        counters: Counters,
        groups: CallGroups,
        process: str,
        look_again: Callable[[str], None],
        supervisor: Supervisor,
    ) -> None:
        self._counters = counters
        self._groups = groups
        self._process = process
        self._look_again = look_again
        self._supervisor = supervisor
        self._numbers = itertools.count(1)
        self._leases: dict[str, Lease] = {}
        self._ended: set[Lease] = set()
        # since when calls of a payer without a lease are counted, and how many they are; since
        # later than now for one that is to ask for no lease until then
        self._recent: dict[str, tuple[float, int]] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._leases) + len(self._ended)

    def take(self, account: Account, policy: Policy, hold: Hold) -> RateState | None:
        """Admit a call from the payer's lease: the rate that is left.

        None where the counters are to be asked: without a lease, or where it is used up.
        """
        lease = self._leases.get(policy.key_name)
        if lease is None:
            self._note_call(account, policy, hold.micros)
            return None
        is_same = lease.account is account and lease.policy is policy
        if not is_same and not lease.follow(account, policy):
            self._end(lease)
            return None
        group, micros = lease.group, hold.micros
        if lease.slots < 1 or group.spare < micros or time.monotonic() >= lease.until:
            self._miss(lease, micros)
            return None
        lease.slots -= 1
        lease.taken += 1
        self._groups.take(group, hold.task, micros)
        if group.spare < lease.lowest:
            lease.lowest = group.spare
        if micros > lease.largest:
            lease.largest = micros
        rate = lease.rate
        return RateState(rate.limit, rate.remaining + lease.slots, rate.reset)

    async def flush(self, account: str) -> bool:
        """End an account's leases and charge its ended calls; whether there was a lease."""
        leases = [
            lease
            for lease in (*self._leases.values(), *self._ended)
            if lease.account.name == account
        ]
        for lease in leases:
            await self._finish(lease)
        return bool(leases)

    async def close(self) -> None:
        """Grant no more leases and end all. Calls under way keep their reservations."""
        self._closed = True
        leases = (*self._leases.values(), *self._ended)
        await asyncio.gather(*(self._finish(lease) for lease in leases))

    async def _finish(self, lease: Lease) -> None:
        self._end(lease)
        while lease.renewal is not None:
            # another may begin when this one has ended
            await asyncio.wait([lease.renewal])

    def _note_call(self, account: Account, policy: Policy, micros: int) -> None:
        """Ask for a lease if the payer makes many calls."""
        now, name = time.monotonic(), policy.key_name
        since, calls = self._recent.get(name, (now, 0))
        if now - since > BUSY_SECONDS:
            since, calls = now, 0
        calls += 1
        if calls < BUSY_CALLS or now < since:
            self._note_recent(name, since, calls)
            return
        self._recent.pop(name, None)
        of_account = sum(lease.account.name == account.name for lease in self._leases.values())
        if self._closed or len(self) >= MOST_LEASES or of_account >= MOST_OF_ACCOUNT:
            return
        lease = Lease(account, policy, self._make_group(account, policy), self._watch)
        lease.began, lease.missed, lease.largest = since, calls, micros
        self._leases[name] = lease
        self._renew(lease)

    def _note_recent(self, name: str, since: float, calls: int) -> None:
        if len(self._recent) >= MOST_RECENT:
            self._recent.clear()
        self._recent[name] = since, calls

    def _miss(self, lease: Lease, micros: int) -> None:
        """Renew a lease that is used up."""
        if lease.renewal is not None:
            return
        lease.missed += 1
        lease.largest = max(lease.largest, micros)
        if time.monotonic() - lease.began >= HURRY_SECONDS:
            self._renew(lease)

    def _end(self, lease: Lease) -> None:
        """Admit no more calls from a lease, and charge and return what can be."""
        if not lease.ended:
            lease.ended = True
            del self._leases[lease.policy.key_name]
            self._ended.add(lease)
        if lease.renewal is None and lease.is_renewable:
            self._renew(lease)

    def _watch(self, lease: Lease) -> None:
        """Have a lease renewed in time, and end soon after its last call."""
        loop = asyncio.get_running_loop()
        if lease.timer is None:
            lease.timer = loop.call_at(lease.began + RENEW_SECONDS, self._look, lease)
        if not lease.group.running and not lease.is_watched:
            lease.is_watched = True
            loop.call_later(IDLE_SECONDS, self._look_idle, lease, lease.group, lease.taken)

    def _look(self, lease: Lease) -> None:
        lease.timer = None
        if lease.renewal is not None:
            return
        if lease.taken or lease.missed:
            self._renew(lease)
        else:
            self._end(lease)

    def _look_idle(self, lease: Lease, group: CallGroup, taken: int) -> None:
        lease.is_watched = False
        if lease.group.running or lease.renewal is not None:
            return
        if lease.group is group and lease.taken == taken:
            self._end(lease)
        else:
            self._watch(lease)

    def _renew(self, lease: Lease) -> None:
        if lease.timer is not None:
            lease.timer.cancel()
            lease.timer = None
        lease.renewal = asyncio.create_task(self._run_renewal(lease))

    async def _run_renewal(self, lease: Lease) -> None:
        expected, account = (CountersStale, CountersUnavailable), lease.account.name
        try:
            with self._supervisor.guard("leases", *expected, account=account) as attempt:
                await self._exchange(lease)
        finally:
            lease.renewal = None
        if lease.group.owner is None:
            self._ended.discard(lease)
        elif lease.ended:
            # it may have ended during the exchange
            if not attempt.failed and (lease.slots or not lease.group.running):
                self._renew(lease)
        elif attempt.failed or not lease.slots:
            # refused, and will be: near a limit each call asks exactly
            self._note_recent(lease.policy.key_name, time.monotonic() + DENIED_SECONDS, 0)
            self._end(lease)
        else:
            self._watch(lease)

    async def _exchange(self, lease: Lease) -> None:
        """End the hold of a lease's group, and take that of the next group."""
        before = lease.group
        async with before.lock:
            # no await until all is set: a call ends either in this group or in the next
            now, unused = time.monotonic(), lease.slots
            slots, spare = (0, 0) if lease.ended else lease.size(now)
            after = None if lease.ended and not before.running else self._succeed(lease)
            before.owner, lease.began, lease.slots = None, now, 0
            account, policy = lease.account, lease.policy
            call = LeaseCall(
                account=account.name,
                requests_per_minute=account.requests_per_minute,
                process=self._process,
                funds=None if account.unlimited else account.funds,
                budgets=policy.budgets,
                ended=before.name if before in self._groups else None,
                charges=before.list_charges(),
                hold=None if after is None else after.need,
                spare=spare,
                slots=slots,
                seconds=LIFE_SECONDS,
                stamp=lease.stamp,
                unused=unused,
            )
            async with nullcontext() if after is None else after.lock:
                try:
                    answer = await self._counters.lease(call)
                except BaseException:
                    # whether it has happened is unknown
                    self._look_again(account.name)
                    raise
            before.settled = answer.ended != "gone" or not before.owed
        if not before.settled:
            self._look_again(account.name)
        elif before.is_stored:
            self._groups.forget(before)
        if after is not None:
            lease.grant(answer, now + LIFE_SECONDS)

    def _succeed(self, lease: Lease) -> CallGroup:
        """Return the next group of a lease, to which the calls under way move."""
        before = lease.group
        group = lease.group = self._make_group(lease.account, lease.policy)
        group.owner, group.running, before.running = lease, before.running, {}
        self._groups.add(group)
        return group

    def _make_group(self, account: Account, policy: Policy) -> CallGroup:
        name = f"{CALL_PREFIX}{self._process}-lease-{next(self._numbers)}"
        return CallGroup(account.name, name, policy.subjects)
