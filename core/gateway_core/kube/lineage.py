"""Notices that etcd was restored to an earlier state while this process runs.

Its caches then keep objects that no longer exist. A consistent list of one Lease proves a restore:
by a version of the record that is lower than before, or, where the restore has raised versions, by
the absence of a token that was read before. The first operator adds a random token to its Lease
with every heartbeat; the latest ones are kept.
"""

import asyncio
import os
import secrets
import signal
from collections.abc import Callable, Sequence

import structlog

from gateway_core.api.ids import GROUP, OPERATOR_LEASE
from gateway_core.api.resource import Object
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import KubernetesError

LINEAGE_LEASE = f"{OPERATOR_LEASE}0"
"""The heartbeat of the operator that owns shard 0."""
ANNOTATION = f"{GROUP}/lineage"
MAX_TOKENS = 100
"""With a heartbeat of 10 s, a process may be cut off from the record for a quarter of an hour."""
CHECK_SECONDS = 5.0

_log = structlog.get_logger(__name__)


class RecordRestored(Exception):
    """The record lacks what this process has read from it."""


class Lineage:
    """The version and the token of the record that a process has read last; one for a process."""

    def __init__(self, kube: KubernetesClient) -> None:
        self._kube = kube
        self._version = 0
        self._token = ""

    def observe(self, version: int, tokens: Sequence[str]) -> None:
        """Note what a consistent list has shown. RecordRestored."""
        if version < self._version:
            raise RecordRestored(f"its version is {version} after {self._version}")
        if self._token and self._token not in tokens:
            raise RecordRestored(f"it lacks the token {self._token} at version {version}")
        self._version = version
        self._token = tokens[-1] if tokens else ""

    async def read(self) -> list[str]:
        """Read and observe the tokens, the latest last. RecordRestored, KubernetesError."""
        return (await self._read())[1]

    async def extend(self, holder: str) -> list[str]:
        """Renew the Lease with one more token; all tokens. RecordRestored, KubernetesError.

        WriteConflict where another operator was faster: its token will do.
        """
        lease, tokens = await self._read()
        extended = [*tokens, secrets.token_hex(4)][-MAX_TOKENS:]
        annotations = {ANNOTATION: " ".join(extended)}
        version = None if lease is None else lease["metadata"]["resourceVersion"]
        await self._kube.renew_lease(
            LINEAGE_LEASE, holder, annotations=annotations, version=version
        )
        self._token = extended[-1]
        return extended

    async def run(self, end: Callable[[], None] | None = None) -> None:
        """Read every few seconds; after a restore call `end`, by default that of this process."""
        while True:
            try:
                await self.read()
            except RecordRestored as error:
                _log.error("etcd was restored: ending, to read all anew", error=str(error))
                (end or end_process)()
                await asyncio.get_running_loop().create_future()
            except KubernetesError as error:
                _log.info("the lineage of the record cannot be read", error=str(error))
            await asyncio.sleep(CHECK_SECONDS)

    async def _read(self) -> tuple[Object | None, list[str]]:
        lease, version = await self._kube.find_lease(LINEAGE_LEASE)
        annotations = {} if lease is None else lease["metadata"].get("annotations") or {}
        tokens = annotations.get(ANNOTATION, "").split()
        self.observe(version, tokens)
        return lease, tokens


def end_process() -> None:
    """Have this process refuse new requests, drain and end; its supervisor starts it again."""
    # SIGTERM would let the server linger, and answer from caches that are wrong
    os.kill(os.getpid(), signal.SIGINT)
