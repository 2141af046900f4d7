"""`/v1/uploads` and the operator's controllers on one set of fakes, stopped at chosen steps.

Used by the state machine of uploads and by the test of interrupted requests.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gateway_core.api.account import GatewayAccount
from gateway_core.api.times import format_time
from gateway_core.files.files import FileRecorder
from gateway_operator.context import Context, Failpoints, Shards
from gateway_operator.files.audit import OrphanRemoval
from gateway_operator.files.controller import FileController, Removal
from gateway_operator.files.intake import Intake
from gateway_operator.files.storage import FileStorage
from gateway_operator.metrics import Metrics
from gateway_operator.uploads.controller import Settlement, UploadController
from tests.fakes.informer import FakeInformer
from tests.unit.apiserver.gateway import Answer, Gateway, call, clear_environment
from tests.unit.apiserver.uploads import Uploader

STEPS = {
    "kube": ("create", "get", "patch", "patch_status", "delete", "list_page"),
    "storage": (
        "claim",
        "confirm",
        "move",
        "release",
        "begin_rebuild",
        "renew_rebuild",
        "finish_rebuild",
    ),
    "parts": ("claim", "release", "establish"),
    "store": ("put", "put_stream", "get", "head", "delete_many"),
}
"""The calls by which a process acts on something outside. A step lies before and after each."""

AHEAD = timedelta(seconds=1)
"""By how much the API server's clock is ahead of the processes'."""


class Killed(Exception):
    """The process has ended."""


@dataclass
class Fate:
    """What happens at the steps of a request: a kill, a visit, pauses. One for all ports."""

    left: int | None = None
    """Steps until the process is killed."""
    dead: bool = False
    pauses: random.Random | None = None
    visitor: Callable[[], Awaitable[object]] | None = None
    """Runs to its end at the step that has `visit_after` steps before it."""
    visit_after: int = 0
    _is_visiting: bool = False

    def wrap(self, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """`method` with a step before it and one after it."""

        async def run(*args: Any, **options: Any) -> Any:
            await self._step()
            if self.pauses is not None:
                for _ in range(self.pauses.randrange(4)):
                    await asyncio.sleep(0)
            result = await method(*args, **options)
            await self._step()
            return result

        return run

    async def _step(self) -> None:
        if self._is_visiting:
            # what the visitor does has no steps of its own
            return
        if self.visitor is not None:
            self.visit_after -= 1
            if self.visit_after < 0:
                await self._visit()
        if self.left is not None and not self.dead:
            self.left -= 1
            self.dead = self.left < 0
        if self.dead:
            raise Killed

    async def _visit(self) -> None:
        visitor, self.visitor = self.visitor, None
        assert visitor is not None
        self._is_visiting = True
        try:
            await visitor()
        finally:
            self._is_visiting = False


class UploadBench:
    """One API and one operator on one record, with a clock to set."""

    def __init__(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            clear_environment(patch)
            self.gateway = Gateway()
        self.passed = 0
        self.begin = int(time.time())
        self.gateway.clock = self.tell_time
        self.kube, self.storage = self.gateway.kube, self.gateway.storage
        # so that a time of the record is never taken for one of a process
        self.kube.clock = lambda: format_time(self.tell_now() + AHEAD)
        self.fate = Fate()
        for port, names in STEPS.items():
            holder = getattr(self.gateway, port)
            for name in names:
                setattr(holder, name, self.fate.wrap(getattr(holder, name)))
        self.uploader = Uploader(self.gateway)
        accounts = FakeInformer(self.kube, "gatewayaccounts", GatewayAccount.model_validate)
        for account in self.kube.list_objects("gatewayaccounts"):
            # the reconciliation of bytes leaves those of unknown accounts alone
            accounts.upsert(account)
        context = Context(
            kube=self.kube,
            store=self.gateway.store,
            shards=Shards(),
            mint=self.gateway.mint,
            failpoints=Failpoints(),
            metrics=Metrics(),
            now=self.tell_now,
            post=self.kube.post_event,
        )
        storage = FileStorage(context, self.storage)
        intake = Intake(storage, accounts)
        settlement = Settlement(storage, FileRecorder(self.kube, self.storage))
        removal = Removal(storage, settlement, accounts, grace_seconds=0)
        self.files = FileController(storage, intake, removal)
        self.uploads = UploadController(storage, settlement)
        self.orphans = OrphanRemoval(storage, intake, accounts, 0)

    def tell_time(self) -> float:
        """Unix seconds, of every process."""
        return self.begin + self.passed

    def tell_now(self) -> datetime:
        """The same as a moment."""
        return datetime.fromtimestamp(self.tell_time(), UTC)

    async def settle(self, name: str) -> None:
        """The operator reconciles the Upload once."""
        await self.uploads.reconcile(name)

    async def remove_file(self, name: str) -> None:
        """The operator reconciles a File once, which removes one that is being deleted."""
        await self.files.reconcile(name)

    async def delete_file(self, name: str) -> Answer:
        """A client's DELETE of a File."""
        headers = [("Authorization", f"Bearer {self.gateway.key}")]
        return await call(self.gateway.app, "DELETE", f"/v1/files/{name}", headers=headers)
