"""Settling an ended task's hold: charged once, however often and by whomever it is done."""

import structlog

from gateway_core.domain.ledger import read_entry
from gateway_core.ports.counters import CountersStale, CountersUnavailable
from gateway_core.ports.records import Object
from gateway_operator.controllers.tasks.tools import Tools

_log = structlog.get_logger(__name__)


async def settle_hold(tools: Tools, obj: Object) -> bool:
    """Settles the hold of an ended task, if there is one; whether that could be done.

    Where the counters are away or stale it is left to the sweeper, or to the rebuild that counts
    this task from the record.
    """
    entry, name = read_entry(obj), obj["metadata"]["name"]
    account = obj["spec"]["request"]["accountName"]
    day = entry.day or tools.now().strftime("%Y-%m-%d")
    try:
        await tools.counters.settle(account, name, entry.charged, day)
    except (CountersStale, CountersUnavailable) as error:
        _log.info("hold not settled", object=name, error=type(error).__name__)
        return False
    return True
