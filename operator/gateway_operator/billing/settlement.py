"""Settling an ended task's hold: charged once, however often and by whomever it is done."""

import asyncio

import structlog

from gateway_core.api.resource import Object
from gateway_core.api.times import parse_time
from gateway_core.billing.ledger import read_entry
from gateway_core.kube.errors import KubernetesError
from gateway_core.redis.link import CountersStale, CountersUnavailable
from gateway_operator.tasks.tools import Tools

REBUILD_LOOKS = 6
REBUILD_PAUSE = 0.5
"""Seconds between two looks at another's rebuild, and before counters that failed are asked again.

They are asked twice, not until they are back: a closing must not wait for them.
"""

_log = structlog.get_logger(__name__)


async def settle_hold(tools: Tools, obj: Object) -> bool:
    """Settles the hold of an ended task, if there is one; whether that could be done.

    Where the counters are stale the account's money is rebuilt first, or another's rebuild waited
    for: one that is under way may have read the task while it was open, and gives it a hold that
    only the sweeper would end. Where that takes long or fails, or the counters fail twice, the hold
    is left to the sweeper, or to the rebuild that counts this task from the record.
    """
    entry, name = read_entry(obj), obj["metadata"]["name"]
    account = obj["spec"]["request"]["accountName"]
    ended = (obj.get("status") or {}).get("completionTime")
    at = parse_time(ended) if ended else tools.now()
    problem: Exception | None = None
    for _ in range(REBUILD_LOOKS):
        try:
            await tools.counters.settle(account, name, entry.charged, at)
        except CountersUnavailable as error:
            if isinstance(problem, CountersUnavailable):
                break
            problem = error
            await asyncio.sleep(REBUILD_PAUSE)
            continue
        except CountersStale as error:
            problem = error
        else:
            return True
        try:
            if not await tools.rebuilder.rebuild(account):
                await asyncio.sleep(REBUILD_PAUSE)
        except (CountersUnavailable, KubernetesError) as error:
            problem = error
            break
    _log.info("hold not settled", object=name, error=type(problem).__name__)
    return False
