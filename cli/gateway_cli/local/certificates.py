"""Certificate and keys of the local control plane, and the kubeconfig of its admin.

The service-account key is kept: it signs tokens of which clients have copies. The certificate and
the admin's token are made anew at every start, so that none expires.
"""

import base64
import secrets
from pathlib import Path
from typing import NamedTuple

import yaml

from gateway_cli.machine import write_private

_NAMES = (
    *("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"),
    *("127.0.0.1", "::1", "10.0.0.1"),
)


class ClusterKeys(NamedTuple):
    """The files that kube-apiserver and its admin need."""

    certificate: Path
    """The server's certificate, and after it the CA that signed it."""
    key: Path
    service_account_key: Path
    """The private key that service-account tokens are signed and verified with."""
    tokens: Path
    """The admin's token in kube-apiserver's format: token, user, uid, groups."""

    def read_token(self) -> str:
        """Return the admin's token."""
        return self.tokens.read_text().partition(",")[0]


def write_cluster_keys(folder: Path) -> ClusterKeys:
    """Make the certificate and the token, and the service-account key if there is none."""
    import trustme  # in no image, as the local run

    names = ("apiserver.crt", "apiserver.key", "service-accounts.key", "tokens.csv")
    keys = ClusterKeys(*(folder / name for name in names))
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    ca = trustme.CA()
    if not keys.service_account_key.exists():
        write_private(keys.service_account_key, trustme.CA().private_key_pem.bytes())
    content = f'{secrets.token_urlsafe(32)},local-admin,local-admin,"system:masters"\n'
    write_private(keys.tokens, content.encode())
    server = ca.issue_cert(*_NAMES, common_name="model-gateway-local")
    write_private(keys.key, server.private_key_pem.bytes())
    chain = [*server.cert_chain_pems, ca.cert_pem]
    write_private(keys.certificate, b"".join(pem.bytes() for pem in chain))
    return keys


def write_kubeconfig(path: Path, keys: ClusterKeys, server: str, namespace: str) -> None:
    """Write a kubeconfig that holds all it needs, for the admin of the local cluster."""
    name = "model-gateway-local"
    ca = base64.b64encode(keys.certificate.read_bytes()).decode()
    cluster = {"server": server, "certificate-authority-data": ca}
    context = {"cluster": name, "user": name, "namespace": namespace}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": {"token": keys.read_token()}}],
        "contexts": [{"name": name, "context": context}],
        "current-context": name,
    }
    write_private(path, yaml.safe_dump(content, sort_keys=False).encode())
