"""Secrets of the Kubernetes API, and secret keys mounted as files."""

import base64
import binascii
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway_core.api.key import Secret
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import ObjectNotFound

LEAST_BYTES = 16
_PEPPER = re.compile(r"pepper-(\d{1,4})")


class SecretClient:
    """Secrets of the client's namespace. Callers keep their data out of logs and other objects."""

    def __init__(self, kube: KubernetesClient) -> None:
        self._kube = kube

    async def find(self, name: str) -> Secret | None:
        """Return the Secret; None where there is none."""
        try:
            obj = await self._kube.call_core("GET", "secrets", name)
        except ObjectNotFound:
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
        """Create a Secret without a version, merge one with it into the version that was read.

        Raises:
            AlreadyExists, WriteConflict, ObjectNotFound: another writer was faster.
            RequestRejected: the Secret is immutable.
        """
        metadata: dict[str, Any] = {
            "name": secret.name,
            "labels": dict(secret.labels),
            "annotations": dict(secret.annotations),
            "ownerReferences": list(secret.owners),
        }
        data = {key: b64encode(value).decode() for key, value in secret.data.items()}
        if secret.version:
            metadata["resourceVersion"] = secret.version
            body = {"metadata": metadata, "data": data}
            await self._kube.call_core("PATCH", "secrets", secret.name, body=body)
        else:
            head = {"apiVersion": "v1", "kind": "Secret", "type": "Opaque"}
            await self._kube.call_core(
                "POST", "secrets", body={**head, "metadata": metadata, "data": data}
            )


class SecretsUnusable(Exception):
    """A key is missing or malformed; the text names the file and nothing of its content."""


def load_key(folder: Path, name: str) -> bytes:
    """Return the key in the file `name`. SecretsUnusable."""
    try:
        return decode_key((folder / name).read_bytes(), str(folder / name))
    except OSError as error:
        raise SecretsUnusable(f"{folder / name}: {error.strerror}") from error


def decode_key(content: bytes, place: str) -> bytes:
    """Return the key of urlsafe base64, with or without padding. SecretsUnusable names `place`."""
    text = content.strip().rstrip(b"=")
    try:
        value = base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4))
    except binascii.Error as error:
        raise SecretsUnusable(f"{place} is not urlsafe base64") from error
    if len(value) < LEAST_BYTES:
        raise SecretsUnusable(f"{place} must hold at least {LEAST_BYTES} bytes")
    return value


def load_peppers(folder: Path) -> Mapping[int, bytes]:
    """Return all peppers by version, from the files `pepper-<version>`.

    Raises SecretsUnusable where none.
    """
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise SecretsUnusable(f"{folder}: {error.strerror}") from error
    found = [match for name in names if (match := _PEPPER.fullmatch(name))]
    if not found:
        raise SecretsUnusable(f"{folder} has no file pepper-1")
    return {int(match[1]): load_key(folder, match[0]) for match in found}
