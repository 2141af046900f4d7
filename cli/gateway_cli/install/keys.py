"""An API key whose plaintext lies in a Secret: the first key of an installation, and its test's.

The Secret comes first and holds everything the GatewayKey is made of, so that a run which was cut
short between the two is completed by the next.
"""

import base64
import contextlib
from pathlib import Path

from gateway_cli.cluster.calls import Object
from gateway_cli.cluster.errors import AlreadyThere, ClusterError
from gateway_cli.install.cluster import ClusterApi
from gateway_cli.install.sharedsecrets import LABELS
from gateway_core.contract.ids import IdMint
from gateway_core.contract.keys import KeyClass, digest, mint_key, parse_key
from gateway_core.contract.names import ACCOUNT_LABEL, API_VERSION, id_to_name

PLAINTEXT = "api-key"
OBJECT_NAME = "name"


async def ensure_key(
    cluster: ClusterApi,
    *,
    account: str,
    secret_name: str,
    display_name: str,
    key_class: KeyClass,
    secrets_folder: Path,
) -> str:
    """The name of the GatewayKey whose plaintext the Secret holds; both made where absent.

    Needs `id-key` and the newest `pepper-<n>` in `secrets_folder`.

    Raises:
        ClusterError: the cluster refuses, or a secret is malformed.
    """
    mint = IdMint(_read(secrets_folder / "id-key"))
    minted = mint_key(key_class)
    secret: Object = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": secret_name, "labels": {**LABELS, ACCOUNT_LABEL: account}},
        "type": "Opaque",
        "stringData": {
            PLAINTEXT: minted.plaintext,
            OBJECT_NAME: id_to_name(mint.mint_random("key", account)),
        },
    }
    try:
        await cluster.create(secret)
        content = secret["stringData"]
    except AlreadyThere:
        found = await cluster.read_secret(secret_name)
        content = {k: base64.b64decode(v).decode() for k, v in (found.get("data") or {}).items()}
    key = _describe(content, account, display_name, key_class, secrets_folder)
    with contextlib.suppress(AlreadyThere):
        await cluster.create(key)
    return str(key["metadata"]["name"])


def _describe(
    content: dict[str, str],
    account: str,
    display_name: str,
    key_class: KeyClass,
    secrets_folder: Path,
) -> Object:
    plaintext = content.get(PLAINTEXT, "").strip()
    parsed = parse_key(plaintext)
    if parsed is None or OBJECT_NAME not in content:
        raise ClusterError(f"the Secret must hold {PLAINTEXT} and {OBJECT_NAME}, a well-formed key")
    version = max(int(path.name.removeprefix("pepper-")) for path in _list_peppers(secrets_folder))
    token = {
        "id": parsed.id,
        "digest": digest(plaintext, _read(secrets_folder / f"pepper-{version}")),
        "pepperVersion": version,
        "hint": f"{plaintext[:7]}…{plaintext[-4:]}",
    }
    return {
        "apiVersion": API_VERSION,
        "kind": "GatewayKey",
        "metadata": {"name": content[OBJECT_NAME].strip(), "labels": {ACCOUNT_LABEL: account}},
        "spec": {
            "accountName": account,
            "class": key_class,
            "displayName": display_name,
            "tokens": [token],
        },
    }


def _list_peppers(folder: Path) -> list[Path]:
    found = list(folder.glob("pepper-[0-9]*"))
    if not found:
        raise ClusterError(f"{folder} has no file pepper-1")
    return found


def _read(path: Path) -> bytes:
    try:
        return base64.urlsafe_b64decode(path.read_bytes().strip())
    except (OSError, ValueError) as error:
        raise ClusterError(f"{path}: {error}") from error
