"""Removes ended Uploads and batches: after a time, or beyond a number for each account (§12.1a).

Only settled objects are listed, so an Upload without its File yet and a batch that is not charged
yet stay. Files stay in any case: an Upload's File has its segments, a batch's result is its output
Files.
"""

import heapq
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog

from gateway_core.api.batch import GatewayBatch
from gateway_core.api.ids import ACCOUNT_LABEL, FOLDED_LABEL
from gateway_core.api.task import SETTLED
from gateway_core.api.times import parse_label_time, parse_time
from gateway_core.api.upload import GatewayUpload
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.lists import list_pages
from gateway_operator.retention.deletions import Deletions, Listed

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class EndedKind:
    """A kind whose settled objects are removed. `read_time` reads from when metadata count.

    None from `read_time`: the object stays.
    """

    plural: str
    read_time: Callable[[Mapping[str, Any]], datetime | None]
    label_selector: str = ""


UPLOADS = EndedKind(GatewayUpload.plural, lambda meta: parse_time(meta["creationTimestamp"]))
BATCHES = EndedKind(
    GatewayBatch.plural,
    lambda meta: parse_label_time(meta["labels"][FOLDED_LABEL]),
    FOLDED_LABEL,
)


class EndedRemoval:
    """Sweeps over the settled objects of a kind. Safe to run concurrently and to be cancelled.

    Objects older than `kept_seconds` are removed; of an account's others the newest `most` stay.
    Memory: a page of metadata, a count for each account, and `most` entries of one account.
    `resume` is called with the name of an object that a kill left with its finalizer.
    """

    def __init__(
        self,
        kube: KubernetesClient,
        deletions: Deletions,
        kind: EndedKind,
        now: Callable[[], datetime],
        *,
        kept_seconds: float,
        most: int,
        resume: Callable[[str], None] = lambda _name: None,
    ) -> None:
        self._kube = kube
        self._deletions = deletions
        self._kind = kind
        self._now = now
        self._kept_seconds = kept_seconds
        self._most = most
        self._resume = resume

    async def sweep(self) -> int:
        """Remove what is due; how many. After an error the next sweep continues."""
        removed = 0
        kept = Counter[str]()
        async for page in self._list(self._kind.label_selector):
            due = [each for each in page if self._is_over(each)]
            kept.update(each.account for each in page if not self._is_over(each))
            removed += await self._deletions.delete(self._kind.plural, due)
        for account, count in kept.items():
            if account and count > self._most:
                removed += await self._trim(account)
        if removed:
            _log.info("ended objects removed", kind=self._kind.plural, objects=removed)
        return removed

    async def _trim(self, account: str) -> int:
        """Remove the account's oldest beyond `most`."""
        parts = (self._kind.label_selector, f"{ACCOUNT_LABEL}={account}")
        removed = 0
        newest: list[Listed] = []
        async for page in self._list(",".join(filter(None, parts))):
            due: list[Listed] = []
            for each in page:
                if len(newest) < self._most:
                    heapq.heappush(newest, each)
                else:
                    due.append(heapq.heappushpop(newest, each))
            removed += await self._deletions.delete(self._kind.plural, due)
        return removed

    def _is_over(self, listed: Listed) -> bool:
        return (self._now() - listed.since).total_seconds() >= self._kept_seconds

    async def _list(self, label_selector: str) -> AsyncIterator[list[Listed]]:
        """Pages of objects that may be removed."""
        async for page in list_pages(
            self._kube,
            self._kind.plural,
            label_selector=label_selector,
            field_selector=f"status.work={SETTLED}",
            metadata_only=True,
        ):
            found: list[Listed] = []
            for meta in (item["metadata"] for item in page.items):
                since = self._kind.read_time(meta)
                if meta.get("finalizers"):
                    self._resume(meta["name"])
                elif since is not None:
                    found.append(Listed.read(meta, since))
            yield found
