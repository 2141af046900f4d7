"""Removes the objects of settled uploads, a day after they ended at the latest.

A File that came of one stays: its segments are its own by then. By their creation, which a list of
metadata shows: an Upload ends within an hour of it.
"""

from collections.abc import Callable
from datetime import datetime

import structlog

from gateway_core.contract.upload import LIFETIME_SECONDS, GatewayUpload
from gateway_core.domain.lifecycle import parse_time
from gateway_core.ports.records import Outdated, RecordOutcomeUnknown, Records
from gateway_operator.retention.rules import DAY_SECONDS

KEPT_SECONDS = LIFETIME_SECONDS + DAY_SECONDS
"""From an Upload's creation: repeats of its requests are answered at least for a day (§4.4)."""

_log = structlog.get_logger(__name__)


class UploadRemoval:
    """Sweeps over settled uploads. `let_go` is told of one whose finalizer was left behind."""

    def __init__(
        self, records: Records, now: Callable[[], datetime], let_go: Callable[[str], None]
    ) -> None:
        self._records = records
        self._now = now
        self._let_go = let_go

    async def sweep(self) -> int:
        """Removes what is due; how many. Raises what the port raises."""
        removed, token = 0, None
        while True:
            page = await self._records.list_page(
                GatewayUpload.plural,
                token=token,
                field_selector="status.work=Settled",
                metadata_only=True,
            )
            for meta in (item["metadata"] for item in page.items):
                age = self._now() - parse_time(meta["creationTimestamp"])
                if meta.get("finalizers"):
                    self._let_go(meta["name"])
                elif age.total_seconds() >= KEPT_SECONDS:
                    removed += await self._delete(meta["name"], meta["uid"])
            token = page.next_token
            if token is None:
                break
        if removed:
            _log.info("settled uploads removed", removed=removed)
        return removed

    async def _delete(self, name: str, uid: str) -> bool:
        try:
            await self._records.delete(GatewayUpload.plural, name, uid=uid)
        except (Outdated, RecordOutcomeUnknown):
            return False
        return True
