"""Removes batches thirty days after their end; their Files stay as long as they were to."""

from collections.abc import Callable
from datetime import datetime, timedelta

import structlog

from gateway_core.contract.batch import GatewayBatch
from gateway_core.contract.names import FOLDED_LABEL
from gateway_core.domain.lifecycle import parse_label_time
from gateway_core.ports.records import Outdated, RecordOutcomeUnknown, Records
from gateway_operator.retention.rules import Rules

_log = structlog.get_logger(__name__)


class BatchRemoval:
    """Sweeps over all batches that are settled. Safe to run twice at a time and to be cut short."""

    def __init__(self, records: Records, rules: Rules, now: Callable[[], datetime]) -> None:
        self._records = records
        self._rules = rules
        self._now = now

    async def sweep(self) -> int:
        """Removes what is due; how many. What the record raises: the next sweep begins anew."""
        oldest = self._now() - timedelta(seconds=self._rules.batches)
        removed, token = 0, None
        while True:
            page = await self._records.list_page(
                GatewayBatch.plural,
                token=token,
                label_selector=FOLDED_LABEL,
                field_selector="status.work=Settled",
                metadata_only=True,
            )
            for meta in (item["metadata"] for item in page.items):
                since = parse_label_time(meta["labels"][FOLDED_LABEL])
                if since is not None and since < oldest:
                    removed += await self._remove(meta)
            token = page.next_token
            if token is None:
                break
        if removed:
            _log.info("batches of the past removed", batches=removed)
        return removed

    async def _remove(self, meta: dict[str, str]) -> bool:
        try:
            await self._records.delete(
                GatewayBatch.plural, meta["name"], uid=meta["uid"], version=meta["resourceVersion"]
            )
        except (Outdated, RecordOutcomeUnknown):
            return False
        return True
