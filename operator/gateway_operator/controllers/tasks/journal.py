"""Status writes: compare-and-set on the newest object, and what follows when one does not land."""

from collections.abc import Mapping
from typing import Any

from gateway_core.contract.task import GatewayTask
from gateway_core.ports.records import (
    Missing,
    Object,
    Outdated,
    RecordOutcomeUnknown,
    Records,
)
from gateway_operator.livetasks import LiveTasks


class Superseded(Exception):
    """The object is not what the step began with; it has been read anew, decide again."""


class Journal:
    """Writes to tasks on behalf of the steps. Raises RecordUnavailable where nothing was done."""

    def __init__(self, records: Records, live: LiveTasks) -> None:
        self._records = records
        self._live = live

    async def commit(self, obj: Object, status: Mapping[str, Any]) -> Object:
        """Merges `status`; the new object. Superseded where it was changed by another."""
        return await self._write(self._records.patch_status, obj, status)

    async def amend(self, obj: Object, patch: Mapping[str, Any]) -> Object:
        """Merges `patch` into metadata or spec; the new object. Superseded as above."""
        return await self._write(self._records.patch, obj, patch)

    async def refresh(self, name: str) -> None:
        """Reads the object by name into the live tasks, or forgets it if it is gone."""
        try:
            self._live.offer(await self._records.get(GatewayTask.plural, name))
        except Missing:
            self._live.drop(name)

    async def _write(self, write: Any, obj: Object, change: Mapping[str, Any]) -> Object:
        name = obj["metadata"]["name"]
        try:
            new: Object = await write(GatewayTask.plural, obj, change)
        except (Outdated, Missing, RecordOutcomeUnknown) as error:
            await self.refresh(name)
            raise Superseded(f"{name}: {error}") from error
        self._live.offer(new)
        return new
