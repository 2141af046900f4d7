"""The controllers of files and uploads as `compose` runs them: what they follow and compare."""

import asyncio

from gateway_core.api.file import GatewayFile
from gateway_core.api.upload import GatewayUpload
from gateway_core.tasks.lifecycle import OPEN_SELECTOR
from gateway_operator.files.controller import FileController
from gateway_operator.files.orphans import OrphanRemoval
from gateway_operator.files.quotacheck import QuotaCheck
from gateway_operator.files.removal import GRACE_SECONDS, Removal
from gateway_operator.files.storage import FileStorage
from gateway_operator.handlers import Followed
from gateway_operator.retention.deletions import Deletions
from gateway_operator.retention.ended import UPLOAD_SECONDS, UPLOADS, EndedRemoval
from gateway_operator.retention.schedule import Sweep
from gateway_operator.settings import Settings
from gateway_operator.uploads.controller import UploadController
from gateway_operator.uploads.settlement import Settlement


class Keepers:
    """Both controllers of one process."""

    def __init__(self, tools: FileStorage, *, grace_seconds: float = GRACE_SECONDS) -> None:
        self._tools = tools
        settlement = Settlement(tools)
        self.uploads = UploadController(tools, settlement)
        self.files = FileController(tools, Removal(tools, settlement, grace_seconds=grace_seconds))
        tools.metrics.uploads_open.set_function(lambda: self.uploads.open)
        tools.metrics.oldest_deletion.set_function(self._find_oldest_deletion)

    def _find_oldest_deletion(self) -> float:
        """Seconds since the oldest deletion that is under way."""
        oldest = min(self.files.leaving, default=None)
        return 0.0 if oldest is None else (self._tools.now() - oldest).total_seconds()

    @property
    def followed(self) -> tuple[Followed, ...]:
        """What kopf is to watch for them."""
        return (
            Followed(GatewayFile, self.files.observe),
            Followed(GatewayUpload, self.uploads.observe, OPEN_SELECTOR),
        )

    async def run(self) -> None:
        """Works until cancelled."""
        await asyncio.gather(self.files.run(), self.uploads.run())

    async def end(self) -> None:
        """Takes nothing more, and leaves what is under way a moment."""
        await asyncio.gather(self.files.end(), self.uploads.end())

    def plan_sweeps(self, settings: Settings) -> tuple[Sweep, ...]:
        """What shard 0's owner removes, and compares with the record, and how often."""
        tools, pause = self._tools, settings.reconcile_seconds
        removal = EndedRemoval(
            tools.kube,
            Deletions(tools.kube, tools.failpoints),
            UPLOADS,
            tools.now,
            kept_seconds=UPLOAD_SECONDS,
            most=settings.rules.ended,
            resume=self.uploads.take_up,
        )
        comparison = OrphanRemoval(tools, settings.orphan_seconds)
        proof = QuotaCheck(
            tools,
            self.files.take_up,
            self.uploads.take_up,
            claim_seconds=settings.claim_seconds,
        )
        return (
            Sweep("ended uploads", removal.sweep, settings.sweep_seconds),
            Sweep("stored bytes", comparison.sweep, pause),
            Sweep("storage ledger", proof.sweep, settings.proof_seconds),
        )
