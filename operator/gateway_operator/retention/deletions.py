"""Retention times, and paced deletion of objects that a metadata list has shown."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

from gateway_core.api.ids import ACCOUNT_LABEL
from gateway_core.api.upload import LIFETIME_SECONDS
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import WriteConflict, WriteOutcomeUnknown
from gateway_operator.failpoints import Failpoints

DAY_SECONDS = 86_400.0
RESULT_DAYS = 30
"""How long the result of a task can be read (contract §2.3), and an ended batch."""
MOST_ENDED = 1000


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """Times in seconds.

    `finished` is how long a finished task's object is kept after it was archived, `most` how many
    are kept in total; `least` how long each is kept in any case, so that a create that was looking
    for it finds either it or its archive (contract §2.2). `ended` is how many ended Uploads, and as
    many ended batches, are kept of one account (§12.1a). An Upload is kept for a day after its
    lifetime, to answer repeats of its requests (§4.4).
    """

    finished: float = 3600.0
    most: int = 20_000
    least: float = 600.0
    ended: int = MOST_ENDED
    batches: float = RESULT_DAYS * DAY_SECONDS
    results: float = (RESULT_DAYS + 1) * DAY_SECONDS
    uploads: float = LIFETIME_SECONDS + DAY_SECONDS
    usage_days: int = 8


AT_ONCE = 8
PER_SECOND = 200.0
"""Deletes a second of one sweep, at most: work on live objects goes first."""


@dataclass(frozen=True, order=True, slots=True)
class Listed:
    """An object that has ended, as a list of metadata shows it; the oldest sorts first."""

    since: datetime
    name: str
    uid: str
    version: str
    account: str = field(compare=False)

    @classmethod
    def read(cls, meta: Mapping[str, Any], since: datetime) -> Self:
        """From an object's metadata; `account` is empty where no label says it."""
        account = (meta.get("labels") or {}).get(ACCOUNT_LABEL, "")
        return cls(since, meta["name"], meta["uid"], meta["resourceVersion"], account)


@dataclass(eq=False)
class Deletions:
    """Deletes objects at the version that was listed: one that has changed since stays."""

    kube: KubernetesClient
    failpoints: Failpoints

    async def delete(self, plural: str, objects: Sequence[Listed]) -> int:
        """Delete objects; how many this call has deleted. RecordUnavailable."""
        loop = asyncio.get_running_loop()
        deleted = 0
        for start in range(0, len(objects), AT_ONCE):
            begun = loop.time()
            some = objects[start : start + AT_ONCE]
            deleted += sum(await asyncio.gather(*(self._delete(plural, each) for each in some)))
            await asyncio.sleep(max(0.0, begun + len(some) / PER_SECOND - loop.time()))
        return deleted

    async def _delete(self, plural: str, listed: Listed) -> bool:
        self.failpoints.reach("before-removal")
        try:
            await self.kube.delete(plural, listed.name, uid=listed.uid, version=listed.version)
        except (WriteConflict, WriteOutcomeUnknown):
            return False
        self.failpoints.reach("after-removal")
        return True
