"""Where a secret of a run has been written to that is no place for secrets."""

import base64
import os
from contextlib import suppress
from pathlib import Path

from gateway_cli.local.state import SHARED_SECRETS, read_shared_secret
from tests.servers.world import World

KINDS = (
    "gatewaytasks,gatewayproviders,gatewaymodels,gatewayaccounts,gatewayusers,gatewaykeys,"
    "gatewayguardrails,"
    "events,configmaps,leases.coordination.k8s.io"
)


def list_secrets(world: World) -> dict[str, list[bytes]]:
    """What must not be found, by what it is: each in every form it is handled in."""
    credentials = world.run.credentials
    texts = {
        "provider token": credentials.provider_token,
        "webhook secret": credentials.webhook_secret.removeprefix("whsec_"),
    }
    keys = {*world.secrets, *(key.plaintext for key in credentials.keys.values())}
    # the part after the id alone opens the door for whoever knows the id
    texts |= {f"key {key[:11]}": key.partition("_")[2] for key in keys}
    found = {name: [text.encode()] for name, text in texts.items()}
    for name in SHARED_SECRETS:
        raw = read_shared_secret(world.config.secrets_directory, name)
        encoded = base64.urlsafe_b64encode(raw).rstrip(b"=")
        found[name] = [encoded, base64.b64encode(raw).rstrip(b"="), raw.hex().encode()]
    return found


def find_leaks(world: World) -> list[str]:
    """Each secret that is in a log, a stored object, a resource or an event, and where."""
    places: dict[str, bytes] = {}
    for folder in (world.config.log_directory, world.config.store_directory):
        for path in _list_files(folder):
            with suppress(FileNotFoundError):  # a file on its way to its name
                places[str(path.relative_to(world.config.directory))] = path.read_bytes()
    places["kubectl get"] = world.run.kubectl(
        "get", KINDS, "--show-managed-fields", "-o", "yaml"
    ).encode()
    return [
        f"{what} in {place}"
        for what, forms in list_secrets(world).items()
        for place, content in places.items()
        if any(form in content for form in forms)
    ]


def _list_files(folder: Path) -> list[Path]:
    # `walk` passes over a folder that vanishes meanwhile, `rglob` raises
    found = (Path(parent, name) for parent, _, names in os.walk(folder) for name in names)
    return [path for path in found if path.is_file() and path.suffix != ".mp4"]
