"""All that an account was charged in some days, from wherever it is by now.

A run that has ended is in its day's usage object, or still a task or batch without the mark of the
fold; a day is an object for eight days, then a file. Runs and usage are read as they were at one
moment, so that each run is told once, and what has ended is told at once.
"""

from contextlib import suppress

from gateway_core.contract.batch import GatewayBatch
from gateway_core.contract.task import GatewayTask
from gateway_core.domain.ledger import ENDED_PHASES, TERMINAL_PHASES
from gateway_core.domain.reports import Line, read_day, to_line
from gateway_core.domain.usage import Charge, has_charge, read_charge, sum_usage
from gateway_core.ports.objects import ObjectStore
from gateway_core.ports.records import Records, RecordUnavailable, WatchExpired
from gateway_core.usecases.pastdays import read_past_days
from gateway_core.usecases.usage import list_usage, select_unfolded

_ATTEMPTS = 3


async def read_lines(
    records: Records, store: ObjectStore, account: str, first: str, last: str
) -> list[Line]:
    """The account's lines of the UTC days from `first` to `last` (`2026-11-21`), both included.

    Raises RecordUnavailable, StoreUnavailable.
    """
    for _ in range(_ATTEMPTS):
        with suppress(WatchExpired):
            return await _read_moment(records, store, account, first, last)
    raise RecordUnavailable(f"the usage of {account} cannot be listed in time")


async def _read_moment(
    records: Records, store: ObjectStore, account: str, first: str, last: str
) -> list[Line]:
    charges: dict[str, Charge] = {}
    version = ""
    kinds = ((GatewayTask.plural, TERMINAL_PHASES), (GatewayBatch.plural, ENDED_PHASES))
    for plural, phase in ((plural, p) for plural, phases in kinds for p in sorted(phases)):
        token = None
        while True:
            page = await records.list_page(
                plural,
                token=token,
                label_selector=select_unfolded(account),
                field_selector=f"status.phase={phase}",
                at_version=version if token is None else "",
            )
            version = version or page.resource_version
            runs = filter(has_charge, page.items)
            charges |= {run["metadata"]["uid"]: read_charge(run) for run in runs}
            token = page.next_token
            if token is None:
                break
    objects = await list_usage(records, account, at_version=version)
    folded = sum_usage(objects).folded
    days = [obj for obj in objects if first <= obj["spec"].get("day", "") <= last]
    known = {obj["metadata"]["uid"] for obj in days}
    # read after the objects: a day is kept before its object goes
    kept = await read_past_days(store, account, first, last)
    days += [day for day in kept if day["metadata"]["uid"] not in known]
    lines = [line for day in days for line in read_day(day)]
    return lines + [
        to_line(charge)
        for uid, charge in charges.items()
        if uid not in folded and first <= charge.day <= last and charge.counts
    ]
