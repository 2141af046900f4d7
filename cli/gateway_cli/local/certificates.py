"""Certificates and keys of the local control plane, and the kubeconfig of its admin.

The CA and the service-account key are kept; leaf certificates are made anew at every start, so
that none expires.
"""

import base64
import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID

from gateway_cli.files import write_private

_CA_NAME = x509.Name.from_rfc4514_string("CN=model-gateway-local-ca")
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
_SERVER_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
_SERVER_ADDRESSES = ("127.0.0.1", "::1", "10.0.0.1")


@dataclass(frozen=True, slots=True)
class ClusterKeys:
    """The files that kube-apiserver and its admin need."""

    folder: Path

    @property
    def ca(self) -> Path:
        """Certificate of the CA that signs all others."""
        return self.folder / "ca.crt"

    @property
    def service_account_public_key(self) -> Path:
        """The key that service-account tokens are verified with."""
        return self.folder / "service-account.pub"

    def certificate(self, name: str) -> Path:
        """Certificate of the leaf `name`: `apiserver` or `admin`."""
        return self.folder / f"{name}.crt"

    def key(self, name: str) -> Path:
        """Private key of `name`: a leaf, `ca` or `service-account`."""
        return self.folder / f"{name}.key"


def write_cluster_keys(folder: Path) -> ClusterKeys:
    """Makes what is missing of the kept keys, and all leaf certificates."""
    keys = ClusterKeys(folder)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    if not keys.service_account_public_key.exists():
        public = _make_key(keys.key("service-account")).public_key()
        content = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        write_private(keys.service_account_public_key, content)
    if keys.ca.exists():
        ca_key = load_pem_private_key(keys.key("ca").read_bytes(), password=None)
        if not isinstance(ca_key, ec.EllipticCurvePrivateKey):
            raise TypeError(f"{keys.key('ca')} holds no elliptic-curve key")
    else:
        ca_key = _make_key(keys.key("ca"))
        builder = (
            _describe(_CA_NAME, ca_key, days=3650)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_CA_USAGE, critical=True)
        )
        _sign(builder, ca_key, keys.ca)
    names = [x509.DNSName(name) for name in _SERVER_NAMES]
    addresses = [x509.IPAddress(ipaddress.ip_address(text)) for text in _SERVER_ADDRESSES]
    leaves = {"apiserver": "CN=kube-apiserver", "admin": "CN=local-admin,O=system:masters"}
    for name, subject in leaves.items():
        key = _make_key(keys.key(name))
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        builder = (
            _describe(x509.Name.from_rfc4514_string(subject), key, days=365)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(x509.SubjectAlternativeName([*names, *addresses]), critical=False)
        )
        _sign(builder, ca_key, keys.certificate(name))
    return keys


def write_kubeconfig(path: Path, keys: ClusterKeys, server: str, namespace: str) -> None:
    """Writes a kubeconfig that holds all it needs, for the admin of the local cluster."""

    def embed(file: Path) -> str:
        return base64.b64encode(file.read_bytes()).decode()

    name = "model-gateway-local"
    cluster = {"server": server, "certificate-authority-data": embed(keys.ca)}
    user = {
        "client-certificate-data": embed(keys.certificate("admin")),
        "client-key-data": embed(keys.key("admin")),
    }
    context = {"cluster": name, "user": name, "namespace": namespace}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": name, "context": context}],
        "current-context": name,
    }
    write_private(path, yaml.safe_dump(content, sort_keys=False).encode())


def _make_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = ec.generate_private_key(ec.SECP256R1())
    write_private(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return key


def _describe(
    subject: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(_CA_NAME)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + days * day)
    )


def _sign(builder: x509.CertificateBuilder, ca_key: ec.EllipticCurvePrivateKey, path: Path) -> None:
    certificate = builder.sign(ca_key, hashes.SHA256())
    write_private(path, certificate.public_bytes(Encoding.PEM))
