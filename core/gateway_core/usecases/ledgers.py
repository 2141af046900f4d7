"""Rebuilding an account's money in the counters from the durable record.

Done by whichever process finds the counters stale: the API at a paid call, the operator when it
takes in a task made with kubectl.
"""

from collections import Counter
from contextlib import suppress

from gateway_core.contract.task import GatewayTask
from gateway_core.domain.ledger import read_entry
from gateway_core.domain.usage import sum_usage
from gateway_core.ports.counters import Counters, CountersUnavailable, Ledger
from gateway_core.ports.records import Object, Records, RecordUnavailable, WatchExpired
from gateway_core.usecases.usage import list_usage, select_unfolded

_ATTEMPTS = 3


async def rebuild_ledger(records: Records, counters: Counters, account: str) -> bool:
    """Puts the account's ledger in place; False where another replica is at it.

    A task is missed here while the write that records its amount is under way (its create, or its
    intent where it was made with kubectl); the operator takes its hold again before it submits.
    Raises what the ports raise.
    """
    token = await counters.begin_rebuild(account)
    if token is None:
        return False
    try:
        ledger = await read_ledger(records, account)
    except BaseException:
        # a replica that cannot read the record must not keep one that can from it
        with suppress(CountersUnavailable):
            await counters.abandon_rebuild(account, token)
        raise
    return await counters.finish_rebuild(account, token, ledger)


async def read_ledger(records: Records, account: str) -> Ledger:
    """The account's money: what is folded, what has ended since, and what is held.

    Tasks and usage are read as they were at one moment, so that folds that go on meanwhile count
    once: a task that is not marked yet is left out where the usage of that moment names it.
    RecordUnavailable.
    """
    for _ in range(_ATTEMPTS):
        with suppress(WatchExpired):
            return await _read_moment(records, account)
    raise RecordUnavailable(f"the tasks of {account} cannot be listed in time")


async def _read_moment(records: Records, account: str) -> Ledger:
    tasks: list[Object] = []
    version, token = "", None
    while True:
        page = await records.list_page(
            GatewayTask.plural, token=token, label_selector=select_unfolded(account)
        )
        version = version or page.resource_version
        tasks += map(_strip, page.items)
        token = page.next_token
        if token is None:
            break
    balance = sum_usage(await list_usage(records, account, at_version=version))
    charged, by_day, holds = balance.charged, Counter(balance.by_day), dict[str, int]()
    for task in tasks:
        entry = read_entry(task)
        if entry.held:
            holds[task["metadata"]["name"]] = entry.held
        elif entry.charged and task["metadata"]["uid"] not in balance.folded:
            charged += entry.charged
            if entry.day:
                by_day[entry.day] += entry.charged
    return Ledger(charged=charged, by_day=dict(by_day), holds=holds)


def _strip(task: Object) -> Object:
    """What the ledger reads of a task: an account may have thousands of them."""
    meta, status = task["metadata"], task.get("status") or {}
    kept = ("phase", "chargedMicros", "completionTime", "reservedMicros")
    return {
        "metadata": {"name": meta["name"], "uid": meta["uid"]},
        "spec": {"request": {"reservedMicros": task["spec"]["request"].get("reservedMicros")}},
        "status": {field: status[field] for field in kept if field in status},
    }
