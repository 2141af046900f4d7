"""Rebuilding an account's money in the counters from the durable record.

Done by whichever process finds the counters stale: the API at a paid call, the operator when it
takes in a task made with kubectl.
"""

import asyncio
from collections import Counter
from contextlib import suppress

from gateway_core.contract.names import ACCOUNT_LABEL
from gateway_core.contract.task import GatewayTask
from gateway_core.domain.ledger import Entry, read_entry
from gateway_core.ports.counters import Counters, CountersUnavailable, Ledger
from gateway_core.ports.objects import ObjectStore
from gateway_core.ports.records import Records
from gateway_core.usecases.archive import list_archived, load_archived

READS_AT_ONCE = 16


async def rebuild_ledger(
    records: Records, store: ObjectStore, counters: Counters, account: str
) -> bool:
    """Puts the account's ledger in place; False where another replica is at it.

    A task whose create is under way while the record is read is missed here; the operator takes
    its hold again before it submits. Raises what the ports raise.
    """
    token = await counters.begin_rebuild(account)
    if token is None:
        return False
    try:
        ledger = await read_ledger(records, store, account)
    except BaseException:
        # a replica that cannot read the record must not keep one that can from it
        with suppress(CountersUnavailable):
            await counters.abandon_rebuild(account, token)
        raise
    return await counters.finish_rebuild(account, token, ledger)


async def read_ledger(records: Records, store: ObjectStore, account: str) -> Ledger:
    """The account's money as the Kubernetes API and the archive have it."""
    holds: dict[str, int] = {}
    by_day: Counter[str] = Counter()
    charged, seen, page_token = 0, set[str](), None
    while True:
        page = await records.list_page(
            GatewayTask.plural, token=page_token, label_selector=f"{ACCOUNT_LABEL}={account}"
        )
        for obj in page.items:
            name, entry = obj["metadata"]["name"], read_entry(obj)
            seen.add(name)
            charged += _add(entry, by_day)
            if entry.held:
                holds[name] = entry.held
        page_token = page.next_token
        if page_token is None:
            break
    gone = [name async for name in list_archived(store, account) if name not in seen]
    for start in range(0, len(gone), READS_AT_ONCE):
        batch = gone[start : start + READS_AT_ONCE]
        found = await asyncio.gather(*(load_archived(store, account, name) for name in batch))
        charged += sum(_add(read_entry(obj), by_day) for obj in found if obj is not None)
    return Ledger(charged=charged, by_day=dict(by_day), holds=holds)


def _add(entry: Entry, by_day: Counter[str]) -> int:
    if entry.charged and entry.day:
        by_day[entry.day] += entry.charged
    return entry.charged
