"""Certificate and keys of the local control plane, and the kubeconfig of its admin.

The service-account key is kept: it signs tokens of which clients have copies. The certificate and
the admin's token are made anew at every start, so that none expires.
"""

import base64
import secrets
from dataclasses import dataclass
from pathlib import Path

import yaml

from gateway_cli.machine import write_private

_NAMES = (
    *("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"),
    *("127.0.0.1", "::1", "10.0.0.1"),
)


@dataclass(frozen=True, slots=True)
class ClusterKeys:
    """The files that kube-apiserver and its admin need."""

    folder: Path

    @property
    def certificate(self) -> Path:
        """The server's certificate, and after it the CA that signed it."""
        return self.folder / "apiserver.crt"

    @property
    def key(self) -> Path:
        """The server's private key."""
        return self.folder / "apiserver.key"

    @property
    def service_account_key(self) -> Path:
        """The private key that service-account tokens are signed and verified with."""
        return self.folder / "service-accounts.key"

    @property
    def tokens(self) -> Path:
        """The admin's token in kube-apiserver's format: token, user, uid, groups."""
        return self.folder / "tokens.csv"

    def read_token(self) -> str:
        """The admin's token."""
        return self.tokens.read_text().partition(",")[0]


def write_cluster_keys(folder: Path) -> ClusterKeys:
    """Make the certificate and the token, and the service-account key if there is none."""
    import trustme  # in no image, as the local run

    keys = ClusterKeys(folder)
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
    """Writes a kubeconfig that holds all it needs, for the admin of the local cluster."""
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
