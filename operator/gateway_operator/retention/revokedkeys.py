"""Removes revoked keys beyond the number that an account keeps, those revoked first.

A key that an admin declared with `spec.secretName` stays: the next `kubectl apply` would make it
anew. Each key is removed from the guardrails that name it and archived before it is deleted, so
that no place of a guardrail is lost and a repeated create still finds it.
"""

from collections import defaultdict

import structlog

from gateway_core.api.guardrail import GatewayGuardrail
from gateway_core.api.ids import REVOKED_AT_ANNOTATION
from gateway_core.api.key import MOST_REVOKED, GatewayKey
from gateway_core.api.times import parse_time
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import (
    ObjectNotFound,
    RequestRejected,
    WriteConflict,
    WriteOutcomeUnknown,
)
from gateway_core.kube.informer import Cache
from gateway_core.storage.objects import ObjectStore
from gateway_core.tasks.archive import archive_removed
from gateway_operator.retention.objects import Deletions, Listed

_log = structlog.get_logger(__name__)


class RevokedKeys:
    """Sweeps over the table of keys. Safe to run concurrently and to be cancelled."""

    def __init__(
        self,
        kube: KubernetesClient,
        store: ObjectStore,
        deletions: Deletions,
        keys: Cache[GatewayKey],
        guardrails: Cache[GatewayGuardrail],
        *,
        most: int = MOST_REVOKED,
    ) -> None:
        self._kube = kube
        self._store = store
        self._deletions = deletions
        self._keys = keys
        self._guardrails = guardrails
        self._most = most

    async def sweep(self) -> int:
        """Remove what is due; how many. KubernetesError, StoreUnavailable."""
        revoked: defaultdict[str, list[GatewayKey]] = defaultdict(list)
        for _, key in list(self._keys.items()):
            if key.spec.revoked and key.spec.secret_name is None:
                revoked[key.spec.account_name].append(key)
        removed = 0
        for account, keys in revoked.items():
            due = sorted(keys, key=_find_order)[: max(0, len(keys) - self._most)]
            if not due:
                continue
            try:
                removed += await self._remove(account, {key.metadata.name for key in due})
            except RequestRejected as error:
                _log.warning("revoked keys not removed", account=account, error=str(error))
        if removed:
            _log.info("revoked keys removed", keys=removed)
        return removed

    async def _remove(self, account: str, names: set[str]) -> int:
        assigned = await self._unassign(account, names)
        due: list[Listed] = []
        for name in sorted(names - assigned):
            try:
                obj = await self._kube.get(GatewayKey.plural, name)
            except ObjectNotFound:
                continue
            # another of its name, made since
            if not obj["spec"].get("revoked") or obj["spec"]["accountName"] != account:
                continue
            await archive_removed(self._store, GatewayKey.plural, account, obj)
            meta = obj["metadata"]
            due.append(Listed.read(meta, parse_time(meta["creationTimestamp"])))
        return await self._deletions.delete(GatewayKey.plural, due)

    async def _unassign(self, account: str, names: set[str]) -> set[str]:
        """Remove the keys from the account's guardrails; the keys that are still in one.

        These wait for the next sweep: once a key is gone, no sweep looks for its name.
        """
        assigned: set[str] = set()
        for name, guardrail in list(self._guardrails.items()):
            if guardrail.spec.account_name != account:
                continue
            held = names.intersection(guardrail.spec.key_names or ())
            if not held:
                continue
            try:
                obj = await self._kube.get(GatewayGuardrail.plural, name)
                left = [key for key in obj["spec"].get("keyNames") or () if key not in names]
                await self._kube.patch(GatewayGuardrail.plural, obj, {"spec": {"keyNames": left}})
            except ObjectNotFound:
                continue
            except (WriteConflict, WriteOutcomeUnknown, RequestRejected) as error:
                _log.info("revoked keys are still assigned", guardrail=name, error=str(error))
                assigned |= held
        return assigned


def _find_order(key: GatewayKey) -> tuple[str, str]:
    """When it was revoked, as far as known; times of this form sort as text."""
    noted = key.metadata.annotations.get(REVOKED_AT_ANNOTATION, "")
    return noted or key.metadata.creation_timestamp or "", key.metadata.name
