"""`gateway.env`: what a client of the local run needs to know, as shell assignments."""

import shlex
from pathlib import Path

from gateway_cli.local.config import MODEL, MODERATION_MODEL, SERVICE, LocalConfig
from gateway_cli.local.private_files import write_private
from gateway_cli.local.s3server import list_client_variables
from gateway_cli.local.state import Credentials


def list_variables(config: LocalConfig, credentials: Credentials) -> dict[str, str]:
    """The variables of the file, in its order."""
    return {
        "GATEWAY_BASE_URL": config.base_url,
        "GATEWAY_API_KEY": credentials.keys["demo"].plaintext,
        "GATEWAY_MANAGEMENT_KEY": credentials.keys["demo_admin"].plaintext,
        "GATEWAY_API_KEY_2": credentials.keys["guest"].plaintext,
        "GATEWAY_WEBHOOK_SECRET": credentials.webhook_secret,
        "GATEWAY_MEDIA_URL": config.media_url,
        "GATEWAY_SIMULATOR_URL": config.simulator_url,
        "GATEWAY_SERVICE": SERVICE,
        "GATEWAY_MODEL": MODEL,
        "GATEWAY_MODERATION_MODEL": MODERATION_MODEL,
        "GATEWAY_NAMESPACE": config.namespace,
        "KUBECONFIG": str(config.cluster_kubeconfig),
        "GATEWAY_SECRETS_DIR": str(config.secrets_directory),
        **(list_client_variables(config, credentials) if config.store == "s3" else {}),
    }


def write_env_file(path: Path, variables: dict[str, str]) -> None:
    """Writes the file with mode 0600; `set -a; . FILE` reads it."""
    lines = [f"{name}={shlex.quote(value)}\n" for name, value in variables.items()]
    write_private(path, "".join(lines).encode())
