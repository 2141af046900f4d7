"""Secrets of the Kubernetes API, and secret keys mounted as files."""

import base64
import binascii
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway_core.api.key import Secret
from gateway_core.kube.client import KubeRecords
from gateway_core.kube.records import Missing, Secrets


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


LEAST_BYTES = 16
_PEPPER = re.compile(r"pepper-(\d{1,4})")


class SecretsUnusable(Exception):
    """A key is missing or malformed; the text names the file and tells nothing of its content."""


def load_key(folder: Path, name: str) -> bytes:
    """The key in the file `name`. SecretsUnusable."""
    try:
        text = (folder / name).read_bytes().strip().rstrip(b"=")
        value = base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4))
    except OSError as error:
        raise SecretsUnusable(f"{folder / name}: {error.strerror}") from error
    except binascii.Error as error:
        raise SecretsUnusable(f"{folder / name} is not urlsafe base64") from error
    if len(value) < LEAST_BYTES:
        raise SecretsUnusable(f"{folder / name} must hold at least {LEAST_BYTES} bytes")
    return value


def load_peppers(folder: Path) -> Mapping[int, bytes]:
    """All peppers by version, of the files `pepper-<version>`. SecretsUnusable if none."""
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise SecretsUnusable(f"{folder}: {error.strerror}") from error
    found = [match for name in names if (match := _PEPPER.fullmatch(name))]
    if not found:
        raise SecretsUnusable(f"{folder} has no file pepper-1")
    return {int(match[1]): load_key(folder, match[0]) for match in found}
