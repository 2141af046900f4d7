"""The secrets of a local run, and the files and objects that are filled in with them.

`secrets/` holds what the processes share; `state/credentials.json` what only the local run knows,
the plaintext of the API keys above all. All are made at the first `up` and kept until `clean`.
"""

import base64
import secrets
import shlex
import string
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from gateway_cli.admin.tokens import make_secret_key, make_webhook_secret
from gateway_cli.cluster.manifests import parse_manifests
from gateway_cli.local.config import MODEL, MODERATION_MODEL, SERVICE, LocalConfig, LocalRunError
from gateway_cli.machine import write_private
from gateway_core.accounts.passwords import generate_password, hash_password
from gateway_core.api.ids import IdMint, id_to_name
from gateway_core.api.key import KeyClass, digest, mint_key
from gateway_core.api.resource import Object
from gateway_core.failures import describe_failure

PEPPER = "pepper-1"
ID_KEY = "id-key"
SHARED_SECRETS = (ID_KEY, PEPPER, "media-key")
KEYS: dict[str, tuple[str, KeyClass]] = {
    "demo": ("demo", "Standard"),
    "demo_admin": ("demo", "Management"),
    "guest": ("guest", "Standard"),
}
"""Account and class of each key, by the name that it has here."""
USER_EMAIL = "dana@example.com"
"""The user who can sign in: the owner of the account `demo`."""
S3_REGION = "us-east-1"
S3_ACCESS_KEY = "local"


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
    user_password: str = ""
    user_password_hash: str = ""


def ensure_shared_secrets(folder: Path) -> None:
    """Make the files that the processes read: 32 random bytes each, urlsafe base64."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    for name in SHARED_SECRETS:
        if not (folder / name).exists():
            write_private(folder / name, make_secret_key().encode())


def read_shared_secret(folder: Path, name: str) -> bytes:
    """Return the 32 bytes of one shared secret. ValueError if the file holds something else."""
    value = base64.urlsafe_b64decode((folder / name).read_bytes())
    if len(value) != 32:
        raise ValueError(f"{folder / name} must hold 32 bytes")
    return value


def ensure_credentials(path: Path, secrets_folder: Path) -> Credentials:
    """Return the credentials kept at `path`, made if there are none; missing keys are added.

    It needs the shared secrets: the names of keys carry a tag under the id key.
    """
    mint = IdMint(read_shared_secret(secrets_folder, ID_KEY))
    try:
        kept = Credentials.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        kept = Credentials(
            keys={},
            webhook_secret=make_webhook_secret(),
            provider_token=secrets.token_urlsafe(32),
        )
    missing = {name: _make_key(mint, *KEYS[name]) for name in KEYS if name not in kept.keys}
    password = kept.user_password or generate_password()
    added = {
        "keys": {**kept.keys, **missing},
        "s3_secret": kept.s3_secret or secrets.token_urlsafe(24),
        "user_password": password,
        # kept too: another hash of the same password would end the user's sessions
        "user_password_hash": kept.user_password_hash or hash_password(password),
    }
    credentials = kept.model_copy(update=added)
    if credentials != kept:
        write_private(path, credentials.model_dump_json(indent=2).encode())
    return credentials


def digest_key(key: ApiKey, secrets_folder: Path) -> str:
    """Return the digest that a GatewayKey stores of the key."""
    return digest(key.plaintext, read_shared_secret(secrets_folder, PEPPER))


def list_variables(config: LocalConfig, credentials: Credentials) -> dict[str, str]:
    """Return the variables of `gateway.env`, which clients need, in its order."""
    variables = {
        "GATEWAY_BASE_URL": config.base_url,
        "GATEWAY_API_KEY": credentials.keys["demo"].plaintext,
        "GATEWAY_MANAGEMENT_KEY": credentials.keys["demo_admin"].plaintext,
        "GATEWAY_API_KEY_2": credentials.keys["guest"].plaintext,
        "GATEWAY_WEBHOOK_SECRET": credentials.webhook_secret,
        "GATEWAY_MCP_URL": config.mcp_url,
        "GATEWAY_USER_EMAIL": USER_EMAIL,
        "GATEWAY_USER_PASSWORD": credentials.user_password,
        "GATEWAY_MEDIA_URL": config.media_url,
        "GATEWAY_SIMULATOR_URL": config.simulator_url,
        "GATEWAY_SERVICE": SERVICE,
        "GATEWAY_MODEL": MODEL,
        "GATEWAY_MODERATION_MODEL": MODERATION_MODEL,
        "GATEWAY_NAMESPACE": config.namespace,
        "KUBECONFIG": str(config.cluster_kubeconfig),
        "GATEWAY_SECRETS_DIR": str(config.secrets_directory),
    }
    if config.store == "s3":
        # as boto3 and the aws command read them
        variables |= {
            "AWS_ENDPOINT_URL_S3": config.url("s3"),
            "AWS_REGION": S3_REGION,
            "AWS_ACCESS_KEY_ID": S3_ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": credentials.s3_secret,
        }
    return variables


def write_env_file(path: Path, variables: dict[str, str]) -> None:
    """Write the file with mode 0600; `set -a; . FILE` reads it."""
    lines = [f"{name}={shlex.quote(value)}\n" for name, value in variables.items()]
    write_private(path, "".join(lines).encode())


def read_first_objects(config: LocalConfig, credentials: Credentials) -> list[Object]:
    """Return the objects of examples/local, filled in. LocalRunError for a strange placeholder."""
    values = {
        "PROVIDER_URL": config.simulator_url,
        "PROVIDER_TOKEN": credentials.provider_token,
        "WEBHOOK_SECRET": credentials.webhook_secret,
        "USER_EMAIL": USER_EMAIL,
        "USER_PASSWORD_HASH": credentials.user_password_hash,
    }
    for name, key in credentials.keys.items():
        digest_text = digest_key(key, config.secrets_directory)
        fields = {"NAME": key.name, "ID": key.id, "HINT": key.hint, "DIGEST": digest_text}
        values |= {f"{name.upper()}_KEY_{field}": value for field, value in fields.items()}
    objects = []
    for path in sorted((config.root / "examples" / "local").glob("*.yaml")):
        try:
            text = string.Template(path.read_text()).substitute(values)
        except (KeyError, ValueError) as error:
            raise LocalRunError(
                f"{path}: a placeholder is unknown: {describe_failure(error)}"
            ) from error
        objects += parse_manifests(text, str(path))
    return objects


def _make_key(mint: IdMint, account: str, key_class: KeyClass) -> ApiKey:
    minted = mint_key(key_class)
    name = id_to_name(mint.mint_random("key", account))
    return ApiKey(name=name, id=minted.id, hint=minted.hint, plaintext=minted.plaintext)
