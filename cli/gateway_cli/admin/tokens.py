"""Secrets that the command line makes: tokens of keys, webhook secrets, the installation's own.

A token is digested under the pepper that the API has: in a Secret of the installation, or in a
folder (the local run).
"""

import base64
import secrets
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from gateway_cli.cluster.client import Cluster
from gateway_cli.cluster.errors import ClusterError, Forbidden
from gateway_cli.cluster.secrets import get_secret, list_secrets
from gateway_core.api.ids import IdMint, id_to_name
from gateway_core.api.key import KEY_PREFIX, KeyClass, digest, mint_key
from gateway_core.api.times import format_time
from gateway_core.callbacks.signing import SECRET_PREFIX

PARTS = {"app.kubernetes.io/part-of": "model-gateway"}
SECRET_LABELS = {**PARTS, "app.kubernetes.io/managed-by": "gatewayctl"}
ID_KEY, PEPPER = "id-key", "pepper-"

Token = dict[str, Any]


@dataclass(frozen=True, slots=True)
class KeyRing:
    """The installation's id key, and its newest pepper with its version."""

    id_key: bytes
    pepper: bytes
    version: int

    def mint(self, key_class: KeyClass) -> tuple[str, Token]:
        """Return a new secret, and its entry in `spec.tokens`."""
        minted = mint_key(key_class)
        token = {
            "id": minted.id,
            "digest": digest(minted.plaintext, self.pepper),
            "pepperVersion": self.version,
            "hint": minted.hint,
        }
        return minted.plaintext, token

    def name_object(self, prefix: str, account: str) -> str:
        """Return a new object's name of the shape that the API makes."""
        return id_to_name(IdMint(self.id_key).mint_random(prefix, account))


async def find_key_ring(cluster: Cluster, secret_name: str | None, folder: Path | None) -> KeyRing:
    """Return the key ring of the folder or Secret named, else of the namespace's only one.

    Raises:
        ClusterError: there is none, or it may not be read.
    """
    if folder is not None:
        return _read_folder(folder)
    try:
        if secret_name is not None:
            return _read_secret(await get_secret(cluster, secret_name))
        listed = await list_secrets(cluster, PARTS)
        found = [secret for secret in listed if _list_versions(secret.get("data") or {})]
    except Forbidden as error:
        raise Forbidden(
            f"{error}. A key that is made here needs the pepper in the API's Secret; with"
            " --secret-name the operator makes it instead"
        ) from error
    if len(found) != 1:
        names = ", ".join(secret["metadata"]["name"] for secret in found) or "none"
        raise ClusterError(
            f"which Secret holds {ID_KEY} and {PEPPER}1 of the gateway in namespace"
            f" {cluster.namespace}? (found: {names}) Say --pepper-secret NAME, or --secrets-dir"
            " FOLDER for a local run; with --secret-name the operator makes the key instead"
        )
    return _read_secret(found[0])


def make_secret_key() -> str:
    """Return 32 random bytes in urlsafe base64."""
    return base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()


def make_webhook_secret() -> str:
    """Return a signing secret in the format of Standard Webhooks."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def name_declared(display_name: str, prefix: str = KEY_PREFIX) -> str:
    """Return a name for an object that an admin declares: after its display name, and unique."""
    letters = (
        c if c in string.ascii_lowercase + string.digits else "-" for c in display_name.lower()
    )
    words = "-".join(part for part in "".join(letters).split("-") if part)[:40].strip("-")
    return "-".join(part for part in (prefix, words, secrets.token_hex(3)) if part)


def rotate_tokens(present: list[Token], new: Token, until: datetime | None) -> list[Token]:
    """Return the new token, and beside it for the overlap the one that was current until now."""
    if until is None:
        return [new]
    lasting = [token for token in present if "expirationTime" not in token]
    current = (lasting or present)[:1]
    return [new, *({**token, "expirationTime": format_time(until)} for token in current)]


def _read_folder(folder: Path) -> KeyRing:
    try:
        files = [path for path in folder.iterdir() if path.is_file()]
        content = {path.name: path.read_bytes() for path in files}
    except OSError as error:
        raise ClusterError(f"{error.filename or folder}: {error.strerror}") from error
    return _read(content, f"folder {folder}")


def _read_secret(secret: Mapping[str, Any]) -> KeyRing:
    data = secret.get("data") or {}
    content = {name: base64.b64decode(value) for name, value in data.items()}
    return _read(content, f"Secret {secret['metadata']['name']}")


def _read(content: Mapping[str, bytes], where: str) -> KeyRing:
    """Return the key ring of the entries of a Secret, or of the files of a folder."""
    # it brings a client along, which help and completion do without
    from gateway_core.kube.secrets import SecretsUnusable, decode_key

    versions = _list_versions(content)
    if not versions or ID_KEY not in content:
        raise ClusterError(f"{where} must hold {ID_KEY} and {PEPPER}1")
    newest = max(versions)
    names = (ID_KEY, f"{PEPPER}{newest}")
    try:
        id_key, pepper = (decode_key(content[name], f"{name} of {where}") for name in names)
    except SecretsUnusable as error:
        raise ClusterError(str(error)) from error
    return KeyRing(id_key, pepper, newest)


def _list_versions(content: Iterable[str]) -> list[int]:
    """Return the versions of the peppers among entries."""
    versions = (name.removeprefix(PEPPER) for name in content if name.startswith(PEPPER))
    return [int(version) for version in versions if version.isdecimal()]
