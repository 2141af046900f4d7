"""The gateway's own secrets, made where they are absent and never changed.

The Job that does this may create Secrets and read none: what is there is left alone unseen. They
are no part of the Helm release, so neither an upgrade nor an uninstall touches them.
"""

import base64
import secrets
from collections.abc import Mapping

from gateway_cli.cluster.errors import AlreadyThere
from gateway_cli.install.cluster import ClusterApi

LABELS = {
    "app.kubernetes.io/part-of": "model-gateway",
    "app.kubernetes.io/managed-by": "gatewayctl",
}


def make_secret_key() -> str:
    """32 random bytes in urlsafe base64."""
    return base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()


async def ensure_secret(cluster: ClusterApi, name: str, content: Mapping[str, str]) -> bool:
    """Creates the Secret if there is none of that name; whether it did.

    Raises:
        ClusterError: it is refused.
    """
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "labels": LABELS},
        "type": "Opaque",
        "stringData": dict(content),
    }
    try:
        await cluster.create(secret)
    except AlreadyThere:
        return False
    return True


def make_webhook_secret() -> str:
    """A signing secret in the format of Standard Webhooks."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


def make_redis_content(address: str) -> dict[str, str]:
    """Password and URL of a Redis at `address` (host:port)."""
    password = secrets.token_hex(32)
    return {"password": password, "url": f"redis://:{password}@{address}/0"}
