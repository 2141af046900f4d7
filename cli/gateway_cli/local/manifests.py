"""The objects of the local run as YAML: its namespace, and examples/local filled in."""

import string
from pathlib import Path

import yaml

from gateway_cli.local.config import LocalConfig
from gateway_cli.local.errors import LocalRunError
from gateway_cli.local.private_files import write_private
from gateway_cli.local.state import Credentials, digest_key


def write_namespace(config: LocalConfig) -> Path:
    """Writes the manifest of the run's namespace and returns its path."""
    content = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": config.namespace}}
    path = config.directory / "manifests" / "namespace.yaml"
    write_private(path, yaml.safe_dump(content).encode())
    return path


def list_crds(config: LocalConfig) -> list[Path]:
    """The files of all CRDs.

    Raises:
        LocalRunError: if there is none.
    """
    found = sorted((config.root / "crds").glob("*.yaml"))
    if not found:
        raise LocalRunError(f"{config.root / 'crds'} holds no CRDs; `make generate` writes them")
    return found


def write_first_objects(config: LocalConfig, credentials: Credentials) -> Path:
    """Fills in every file of examples/local and writes them as one; returns its path.

    Raises:
        LocalRunError: if a file has a blank that the run knows nothing of.
    """
    values = {
        "PROVIDER_URL": config.simulator_url,
        "PROVIDER_TOKEN": credentials.provider_token,
        "WEBHOOK_SECRET": credentials.webhook_secret,
    }
    for name, key in credentials.keys.items():
        head = f"{name.upper()}_KEY"
        values[f"{head}_NAME"] = key.name
        values[f"{head}_ID"] = key.id
        values[f"{head}_HINT"] = key.hint
        values[f"{head}_DIGEST"] = digest_key(key, config.secrets_directory)
    texts = []
    for path in sorted((config.root / "examples" / "local").glob("*.yaml")):
        try:
            texts.append(string.Template(path.read_text()).substitute(values))
        except (KeyError, ValueError) as error:
            raise LocalRunError(f"{path}: unknown blank {error}") from error
    path = config.directory / "manifests" / "objects.yaml"
    write_private(path, "---\n".join(texts).encode())
    return path
