"""Certificate and keys of the local control plane, and the kubeconfig of its admin.

The service-account key is kept: it signs tokens of which clients have copies. The certificate and
the admin's token are made anew at every start, so that none expires.
"""

import base64
import datetime
import ipaddress
import secrets
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from gateway_cli.machine import write_private

_NAME = x509.Name.from_rfc4514_string("CN=model-gateway-local")
_SERVER_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
_SERVER_ADDRESSES = ("127.0.0.1", "::1", "10.0.0.1")
_CA_USAGE = x509.KeyUsage(
    digital_signature=True,
    key_cert_sign=True,
    crl_sign=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)


@dataclass(frozen=True, slots=True)
class ClusterKeys:
    """The files that kube-apiserver and its admin need."""

    folder: Path

    @property
    def certificate(self) -> Path:
        """The server's certificate, which is its own CA."""
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
    """Makes the certificate and the token, and the service-account key if there is none."""
    keys = ClusterKeys(folder)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    if not keys.service_account_key.exists():
        _make_key(keys.service_account_key)
    content = f'{secrets.token_urlsafe(32)},local-admin,local-admin,"system:masters"\n'
    write_private(keys.tokens, content.encode())
    key = _make_key(keys.key)
    names = [x509.DNSName(name) for name in _SERVER_NAMES]
    addresses = [x509.IPAddress(ipaddress.ip_address(text)) for text in _SERVER_ADDRESSES]
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(_NAME)
        .issuer_name(_NAME)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + 365 * day)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_CA_USAGE, critical=True)
        .add_extension(x509.SubjectAlternativeName([*names, *addresses]), critical=False)
        .sign(key, hashes.SHA256())
    )
    write_private(keys.certificate, certificate.public_bytes(Encoding.PEM))
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


def _make_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = ec.generate_private_key(ec.SECP256R1())
    # kube-apiserver verifies with the public half of such a key, and not with that of a PKCS8 one
    write_private(
        path, key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    )
    return key
