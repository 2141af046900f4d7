"""Copies the time of the last use of keys from the counters into their status, where it is durable.

A key in use is written once in 15 minutes, however often it is used.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from gateway_core.api.key import GatewayKey
from gateway_core.api.times import format_time, parse_time
from gateway_core.billing.counters import Counters
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import ObjectNotFound, WriteConflict, WriteOutcomeUnknown
from gateway_core.kube.informer import Cache

COPY_SECONDS = 900.0


@dataclass(eq=False)
class LastUse:
    """Sweeps over all keys, account by account."""

    kube: KubernetesClient
    counters: Counters
    keys: Cache[GatewayKey]

    async def sweep(self) -> int:
        """Write where the counters know a later use; how many keys.

        Raises CountersUnavailable, RecordUnavailable.
        """
        accounts = {key.spec.account_name for _, key in self.keys.items()}
        written = 0
        for account in accounts:
            for name, at in (await self.counters.read_used(account)).items():
                key = self.keys.get(name)
                if key is not None and key.spec.account_name == account:
                    written += await self._write(key, datetime.fromtimestamp(int(at), UTC))
        return written

    async def _write(self, key: GatewayKey, used: datetime) -> bool:
        shown = key.status.last_used_time
        if shown is not None and parse_time(shown) >= used:
            return False
        meta = {"name": key.metadata.name, "resourceVersion": key.metadata.resource_version}
        try:
            await self.kube.patch_status(
                GatewayKey.plural, {"metadata": meta}, {"lastUsedTime": format_time(used)}
            )
        except (WriteConflict, ObjectNotFound, WriteOutcomeUnknown):
            # it has just changed: the next sweep writes it
            return False
        return True
