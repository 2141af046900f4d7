"""Secrets in the Kubernetes API; fulfils `ports.secrets`."""

from base64 import b64decode, b64encode
from typing import Any

from gateway_core.adapters.kube.records import KubeRecords
from gateway_core.contract.secret import Secret
from gateway_core.ports.records import Missing
from gateway_core.ports.secrets import Secrets


class KubeSecrets(Secrets):
    """The Secrets beside the records of one namespace."""

    def __init__(self, records: KubeRecords) -> None:
        self._records = records

    async def find(self, name: str) -> Secret | None:
        """The Secret; see the port."""
        try:
            obj = await self._records.call_core("GET", "secrets", name)
        except Missing:
            return None
        meta = obj["metadata"]
        return Secret(
            name=name,
            data={key: b64decode(value) for key, value in (obj.get("data") or {}).items()},
            labels=meta.get("labels") or {},
            annotations=meta.get("annotations") or {},
            owners=tuple(meta.get("ownerReferences") or ()),
            version=meta["resourceVersion"],
        )

    async def write(self, secret: Secret) -> None:
        """Creates or merges; see the port."""
        metadata: dict[str, Any] = {
            "name": secret.name,
            "labels": dict(secret.labels),
            "annotations": dict(secret.annotations),
            "ownerReferences": list(secret.owners),
        }
        data = {key: b64encode(value).decode() for key, value in secret.data.items()}
        if not secret.version:
            body = {"apiVersion": "v1", "kind": "Secret", "type": "Opaque"}
            await self._records.call_core(
                "POST", "secrets", body={**body, "metadata": metadata, "data": data}
            )
            return
        metadata["resourceVersion"] = secret.version
        await self._records.call_core(
            "PATCH", "secrets", secret.name, body={"metadata": metadata, "data": data}
        )
