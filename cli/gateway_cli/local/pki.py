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
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gateway_cli.local.private_files import write_private

_DAY = datetime.timedelta(days=1)
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
        """What service-account tokens are verified with."""
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
        signer = ec.generate_private_key(ec.SECP256R1())
        public = signer.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        _write_key(keys.key("service-account"), signer)
        write_private(keys.service_account_public_key, public)
    if keys.ca.exists():
        ca_key = _read_key(keys.key("ca"))
        ca = x509.load_pem_x509_certificate(keys.ca.read_bytes())
    else:
        ca_key = ec.generate_private_key(ec.SECP256R1())
        ca = _sign_ca(ca_key)
        _write_key(keys.key("ca"), ca_key)
        write_private(keys.ca, ca.public_bytes(serialization.Encoding.PEM))
    names = [x509.DNSName(name) for name in _SERVER_NAMES]
    addresses = [x509.IPAddress(ipaddress.ip_address(text)) for text in _SERVER_ADDRESSES]
    _write_leaf(keys, "apiserver", "kube-apiserver", None, [*names, *addresses], ca, ca_key)
    _write_leaf(keys, "admin", "local-admin", "system:masters", [], ca, ca_key)
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


def _sign_ca(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "model-gateway-local-ca")])
    usage = x509.KeyUsage(
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
    return (
        _begin(name, name, key, days=3650)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )


def _write_leaf(
    keys: ClusterKeys,
    name: str,
    common_name: str,
    organization: str | None,
    alternatives: list[x509.GeneralName],
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if organization is not None:
        parts.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
    builder = _begin(x509.Name(parts), ca.subject, key, days=365)
    builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    if alternatives:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    certificate = builder.sign(ca_key, hashes.SHA256())
    _write_key(keys.key(name), key)
    write_private(keys.certificate(name), certificate.public_bytes(serialization.Encoding.PEM))


def _begin(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + days * _DAY)
    )


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    content = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write_private(path, content)


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TypeError(f"{path} holds no elliptic-curve key")
    return key
