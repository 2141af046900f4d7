"""The secrets of a local run: made at the first `up`, kept until `clean`.

`secrets/` holds what the processes share; `state/credentials.json` what only the local run knows,
the plaintext of the API keys above all. The one place of the CLI where keys are made.
"""

import base64
import binascii
import secrets
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from gateway_cli.local.private_files import write_private
from gateway_core.api.ids import IdMint, id_to_name
from gateway_core.api.key import KeyClass, digest, mint_key

PEPPER = "pepper-1"
ID_KEY = "id-key"
SHARED_SECRETS = (ID_KEY, PEPPER, "media-key")
KEYS: dict[str, tuple[str, KeyClass]] = {
    "demo": ("demo", "Standard"),
    "demo_admin": ("demo", "Management"),
    "guest": ("guest", "Standard"),
}
"""What each key is called here: its account and its class."""


class ApiKey(BaseModel):
    """An API key with its plaintext, and the name of its GatewayKey object."""

    model_config = ConfigDict(frozen=True)

    name: str
    id: str
    hint: str
    plaintext: str


class Credentials(BaseModel):
    """Everything secret that the local run hands out; `keys` by the names of `KEYS`."""

    model_config = ConfigDict(frozen=True)

    keys: dict[str, ApiKey]
    webhook_secret: str
    provider_token: str
    s3_secret: str = ""


def ensure_shared_secrets(folder: Path) -> None:
    """Makes the files that the processes read: 32 random bytes each, urlsafe base64."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    for name in SHARED_SECRETS:
        if not (folder / name).exists():
            write_private(folder / name, base64.urlsafe_b64encode(secrets.token_bytes(32)))


def read_shared_secret(folder: Path, name: str) -> bytes:
    """The bytes of one shared secret.

    Raises:
        ValueError: if the file holds something else than 32 bytes in urlsafe base64.
    """
    try:
        value = base64.urlsafe_b64decode((folder / name).read_bytes())
    except binascii.Error as error:
        raise ValueError(f"{folder / name} is not urlsafe base64") from error
    if len(value) != 32:
        raise ValueError(f"{folder / name} must hold 32 bytes")
    return value


def ensure_credentials(path: Path, secrets_folder: Path) -> Credentials:
    """The credentials kept at `path`, made if there are none; keys that are not there are added.

    Needs the shared secrets: the names of keys carry a tag under the id key.
    """
    mint = IdMint(read_shared_secret(secrets_folder, ID_KEY))
    try:
        kept = Credentials.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        kept = _make_credentials()
    missing = {name: _make_key(mint, *KEYS[name]) for name in KEYS if name not in kept.keys}
    if missing or not kept.s3_secret:
        s3_secret = kept.s3_secret or secrets.token_urlsafe(24)
        kept = kept.model_copy(update={"keys": {**kept.keys, **missing}, "s3_secret": s3_secret})
        write_private(path, kept.model_dump_json(indent=2).encode())
    return kept


def digest_key(key: ApiKey, secrets_folder: Path) -> str:
    """What a GatewayKey stores of the key."""
    return digest(key.plaintext, read_shared_secret(secrets_folder, PEPPER))


def _make_key(mint: IdMint, account: str, key_class: KeyClass) -> ApiKey:
    minted = mint_key(key_class)
    return ApiKey(
        name=id_to_name(mint.mint_random("key", account)),
        id=minted.id,
        hint=minted.hint,
        plaintext=minted.plaintext,
    )


def _make_credentials() -> Credentials:
    return Credentials(
        keys={},
        webhook_secret="whsec_" + base64.b64encode(secrets.token_bytes(32)).decode(),
        provider_token=secrets.token_urlsafe(32),
    )
