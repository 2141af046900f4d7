"""Moves days of usage that are long past into the sum of past days, oldest first.

First the day is closed, and takes no more charges. That waits for runs that are not marked yet, and
until the usage journal has no entries for the day, since only the day's object knows which of them
it contains. Then it is archived in the object store, for reports. Then its sums and its name go
into the account's `…-before` object in one compare-and-set, and last its own object is deleted.
After a kill at any point the next run continues with the step that is due.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import structlog

from gateway_core.api.resource import Object
from gateway_core.api.usage import MOST_PENDING, GatewayUsage, usage_name
from gateway_core.billing.journal_store import JournalStore, divide_objects
from gateway_core.billing.usage import drop_pending, list_pending, roll_up_day
from gateway_core.billing.usage_store import archive_day, find_marked, open_usage
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import (
    KubernetesError,
    ObjectNotFound,
    WriteConflict,
    WriteOutcomeUnknown,
)
from gateway_core.kube.lists import list_pages
from gateway_core.storage.objects import ObjectStore
from gateway_operator.retention.objects import RetentionRules

_log = structlog.get_logger(__name__)


class DayClosing:
    """Sweep over the usage objects of all accounts."""

    def __init__(
        self,
        kube: KubernetesClient,
        store: ObjectStore,
        rules: RetentionRules,
        now: Callable[[], datetime],
    ) -> None:
        self._kube = kube
        self._store = store
        self._backlog = JournalStore(store)
        self._rules = rules
        self._now = now

    async def sweep(self) -> int:
        """Move the days that are due; how many.

        What fails for one account is raised after all others are done.
        """
        last = self._now().astimezone(UTC).date() - timedelta(days=self._rules.usage_days + 1)
        moved = 0
        due = await self._list_days(last.isoformat())
        waiting = await self._list_waiting() if due else set[str]()
        failed: dict[str, KubernetesError] = {}
        for _, name, account in due:
            if name in waiting or account in failed:
                continue
            try:
                moved += await self._move(await self._kube.get(GatewayUsage.plural, name))
            except (WriteConflict, ObjectNotFound, WriteOutcomeUnknown) as error:
                _log.info("a day of usage is left to the next sweep", error=str(error))
            except KubernetesError as error:
                _log.warning("a day of usage is not moved", usage=name, error=str(error))
                failed[account] = error
        if moved:
            _log.info("days of usage moved away", days=moved)
        if failed:
            raise next(iter(failed.values()))
        return moved

    async def _list_waiting(self) -> set[str]:
        """Return names of the usage objects that have entries in the journal, folded or not."""
        # an entry that cannot be read is folded nowhere, so it is in no day's mark
        found = await self._backlog.read_whole()
        return {usage_name(part.account, part.day) for part in divide_objects(found.objects)}

    async def _list_days(self, last: str) -> list[tuple[str, str, str]]:
        """Days up to `last`, with the names of their objects and accounts, oldest first.

        Without the objects: those of all accounts become due at the same midnight.
        """
        found: list[tuple[str, str, str]] = []
        async for page in list_pages(self._kube, GatewayUsage.plural, limit=100):
            specs = ((obj["spec"], obj["metadata"]["name"]) for obj in page.items)
            days = ((spec.get("day"), name, spec["accountName"]) for spec, name in specs)
            found += [entry for entry in days if entry[0] and entry[0] <= last]
        return sorted(found)

    async def _move(self, day: Object) -> bool:
        closed = await self._close(day)
        if closed is None:
            return False
        await archive_day(self._store, closed)
        await self._absorb(closed)
        meta = closed["metadata"]
        await self._kube.delete(GatewayUsage.plural, meta["name"], uid=meta["uid"])
        return True

    async def _close(self, day: Object) -> Object | None:
        """Close the day; None while a run named in it is not marked."""
        status = day.get("status") or {}
        if status.get("closed"):
            return day
        pending = list_pending(status)
        left = drop_pending(status, await find_marked(self._kube, pending))
        if list_pending(left):
            return None
        change = {**left, "closed": True}
        return await self._kube.patch_status(GatewayUsage.plural, day, change)

    async def _absorb(self, day: Object) -> None:
        """Add a closed day to the sum of past days, unless that names it or the day is gone.

        The day is read after the sum: if it exists and the sum does not name it, it was never
        added, since a name is dropped only after the day's object is deleted.
        """
        before = await open_usage(self._kube, day["spec"]["accountName"], None)
        meta = day["metadata"]
        found = await self._kube.get(GatewayUsage.plural, meta["name"])
        if found["metadata"]["uid"] != meta["uid"]:
            raise ObjectNotFound(f"{meta['name']} is another day's object by now")
        status = before.get("status") or {}
        pending = list_pending(status)
        if meta["uid"] in pending:
            return
        if len(pending) >= MOST_PENDING // 2:
            status = drop_pending(status, await self._find_gone(pending))
        await self._kube.patch_status(GatewayUsage.plural, before, roll_up_day(status, day))

    async def _find_gone(self, pending: dict[str, str]) -> set[str]:
        gone: set[str] = set()
        for uid, name in pending.items():
            try:
                found = await self._kube.get(GatewayUsage.plural, name)
            except ObjectNotFound:
                gone.add(uid)
            else:
                if found["metadata"]["uid"] != uid:
                    gone.add(uid)
        return gone
